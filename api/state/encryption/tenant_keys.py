"""The keys of tenants: the texts of tenants are encrypted at rest.

Each tenant has keys of its own, which are stored wrapped by the master key (RFC 3394). Each text is sealed with a key
that is derived from the tenant's key and from random bytes (AES-256-GCM with a derived key). No derived key seals two
texts, so the number of texts that one tenant key seals has no bound. A sealed text belongs to its place: tenant,
table, row and column are authenticated with the text, so that it cannot be moved to another row. Destroying a tenant's
key destroys the tenant's texts, also in later backups of the tables. Earlier backups have the key, wrapped by the
master key of their time.
"""

import asyncio
import hmac
import os
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple, Protocol, runtime_checkable

from cachetools import LRUCache
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap, aes_key_wrap

from api.state.postgres.database import EVERY_TENANT, Row, Transaction, fetch_all, fetch_one
from api.state.postgres.queries import queries
from cluster.errors import ServingError

KEY_BYTES = 32
NONCE_BYTES = 12
SALT_BYTES = 16
DERIVED = b"\xb7K1:"
"""The first bytes of a text that is sealed with a derived key. Texts of older versions of Baton begin with a random
nonce.
"""
LOOK_MARGIN = timedelta(minutes=2)
"""The overlap of two looks for destroyed keys. It exceeds the time that a transaction takes which destroys a key:
shorter could miss a key whose transaction was committed late; longer reads more rows at each look.
"""
KEPT_KEYS = 10_000
"""Unwrapped keys that a process keeps. Fewer unwraps keys more often; more takes memory, and keeps more keys in it."""

_SQL = queries("keys.sql")


@runtime_checkable
class MasterKey(Protocol):
    """The key that wraps the tenants' keys: a local key, or a key management service. Baton calls it in threads, so a
    call may block.
    """

    name: str
    """Stored beside each wrapped key."""

    def wrap(self, key: bytes) -> bytes:
        """Raises StateUnavailable if a later try may succeed."""
        ...

    def unwrap(self, wrapped: bytes) -> bytes:
        """Raises ServingError for a key that another master key has wrapped, StateUnavailable if a later try may
        succeed.
        """
        ...


class LocalMasterKey:
    """A master key of 32 bytes that the operator keeps, and earlier master keys that have wrapped stored keys."""

    def __init__(self, *keys: bytes) -> None:
        """`keys`: the first key wraps, all keys unwrap. Raises ValueError for a key of another length."""
        for key in keys:
            if len(key) != KEY_BYTES:
                raise ValueError(f"the master key has {len(key)} bytes, not {KEY_BYTES}")
        self.name = "local"
        self._keys = keys
        self._path: Path | None = None

    @classmethod
    def in_file(cls, path: Path) -> "LocalMasterKey":
        """The master key in a file, which is made at the first start. Without the file the stored conversations cannot
        be read. Raises OSError, ValueError.
        """
        path.parent.mkdir(mode=0o711, parents=True, exist_ok=True)  # services in this folder may run as other users
        if not path.exists():
            with NamedTemporaryFile(dir=path.parent) as made:  # with mode 0600
                made.write(os.urandom(KEY_BYTES))
                made.flush()
                os.fsync(made.fileno())
                with suppress(FileExistsError):  # another process has made the file first: its key counts
                    os.link(made.name, path)
        made_of = cls(*_keys_in(path))
        made_of._path = path
        return made_of

    def rotate(self) -> None:
        """Write a new key to the file, in front of the newest of the earlier ones. Raises ValueError if the master key
        is not in a file, OSError.
        """
        if self._path is None:
            raise ValueError(
                "the master key is not in a file: set the environment variable to a new key, a comma and the old key"
            )
        keys = [os.urandom(KEY_BYTES), _keys_in(self._path)[0]]
        made = self._path.with_suffix(".new")
        with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(b"".join(keys))
            file.flush()
            os.fsync(file.fileno())
        made.replace(self._path)
        self._keys = tuple(keys)

    def wrap(self, key: bytes) -> bytes:
        self._look()
        return aes_key_wrap(self._keys[0], key)

    def unwrap(self, wrapped: bytes) -> bytes:
        self._look()
        for key in self._keys:
            with suppress(InvalidUnwrap):
                return aes_key_unwrap(key, wrapped)
        raise ServingError("the master key is not the one that the stored conversations were written with")

    def _look(self) -> None:
        """Read the file again: another process may have rotated the key."""
        if self._path is not None:
            with suppress(OSError, ValueError):
                self._keys = tuple(_keys_in(self._path))


def _keys_in(path: Path) -> list[bytes]:
    """Raises OSError, ValueError."""
    text = path.read_bytes()
    if not text or len(text) % KEY_BYTES:
        raise ValueError(f"the master key in {path} has {len(text)} bytes, not {KEY_BYTES}")
    return [text[first : first + KEY_BYTES] for first in range(0, len(text), KEY_BYTES)]


class TenantKey(NamedTuple):
    tenant: str
    version: int
    key: bytes

    def __repr__(self) -> str:
        return f"TenantKey({self.tenant!r}, {self.version})"  # no log may show the key

    def seal(self, text: bytes, place: str) -> bytes:
        """`place`: the table, row and column of the text."""
        head = os.urandom(SALT_BYTES + NONCE_BYTES)
        key = hmac.digest(self.key, DERIVED + head[:SALT_BYTES], "sha256")
        return DERIVED + head + AESGCM(key).encrypt(head[SALT_BYTES:], text, self._where(place))

    def unseal(self, sealed: bytes, place: str) -> bytes:
        """Raises ServingError for a text that was not sealed with this key in this place."""
        salted = len(DERIVED) + SALT_BYTES
        if sealed.startswith(DERIVED):
            with suppress(InvalidTag):  # then these bytes are the beginning of a random nonce
                key = hmac.digest(self.key, sealed[:salted], "sha256")
                return _opened(key, sealed[salted:], self._where(place))
        try:
            return _opened(self.key, sealed, self._where(place))
        except (InvalidTag, ValueError) as error:
            raise ServingError(f"{place} cannot be read: it was changed, or sealed with another key") from error

    def derived(self, purpose: str) -> bytes:
        """A key for another purpose than sealing. It is lost with this key."""
        return HKDF(SHA256(), KEY_BYTES, None, self._where(purpose)).derive(self.key)

    def _where(self, place: str) -> bytes:
        return f"{self.tenant}|{place}".encode()


def _opened(key: bytes, sealed: bytes, where: bytes) -> bytes:
    return AESGCM(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], where)


class TenantKeys:
    def __init__(self, master: MasterKey) -> None:
        self._master = master
        self._kept: dict[tuple[str, int], tuple[bytes, bytes]] = {}
        """Each key as it is stored wrapped, and unwrapped."""
        self._names = os.urandom(KEY_BYTES)
        """The key that names in Redis are hashed with."""
        self._looked_at: datetime | None = None
        """The last look for destroyed keys, by PostgreSQL's clock."""
        self._remembered: LRUCache[tuple[str, int | None], TenantKey] = LRUCache(KEPT_KEYS)

    async def check(self, transaction: Transaction) -> None:
        """Check that the master key is the one that this database was written with. The first process makes its master
        key so. `transaction`: of EVERY_TENANT. Raises ServingError.
        """
        row = await fetch_one(transaction, _SQL["oldest"])
        if row is not None:
            await self._unwrapped(row["tenant_id"], row)
        self._names = (await self.newest(transaction, EVERY_TENANT)).derived("names")

    def hashed(self, text: str) -> str:
        """A keyed hash, which is the same in all replicas that have reached PostgreSQL. A reader of Redis cannot check
        a guess of the text by it.
        """
        return hmac.digest(self._names, text.encode(), "sha256").hex()

    async def newest(self, transaction: Transaction, tenant: str) -> TenantKey:
        """The key to seal with. A new tenant gets its first key."""
        row = await fetch_one(transaction, _SQL["newest"], tenant=tenant)
        if row is None:
            await transaction.execute(_SQL["add_tenant"], {"tenant": tenant})
            return await self.add(transaction, tenant)
        return self._remember(await self._unwrapped(tenant, row))

    async def add(self, transaction: Transaction, tenant: str) -> TenantKey:
        """Add a key to seal with. Returns the key of another process if that has just added one."""
        wrapped = await asyncio.to_thread(self._master.wrap, os.urandom(KEY_BYTES))
        values = {"tenant": tenant, "wrapped_key": wrapped, "master_key": self._master.name}
        await transaction.execute(_SQL["add"], values)
        row = await fetch_one(transaction, _SQL["newest"], tenant=tenant)
        assert row is not None
        return self._remember(await self._unwrapped(tenant, row))

    async def rewrapped(self, wrapped: bytes) -> dict[str, Any] | None:
        """The columns of a key that the current master key wraps; None if they do not change. Raises ServingError."""
        again = await asyncio.to_thread(lambda: self._master.wrap(self._master.unwrap(wrapped)))
        return None if again == wrapped else {"wrapped_key": again, "master_key": self._master.name}

    async def all(self, transaction: Transaction, tenant: str) -> list[TenantKey]:
        """The keys of a tenant that are not destroyed, the oldest first."""
        rows = await fetch_all(transaction, _SQL["all"], tenant=tenant)
        return [await self._unwrapped(tenant, row) for row in rows]

    async def of_version(self, transaction: Transaction, tenant: str, version: int) -> TenantKey:
        """Raises ServingError if the key is destroyed."""
        row = await fetch_one(transaction, _SQL["of_version"], tenant=tenant, version=version)
        if row is None:
            self._forget(tenant, version)
            raise ServingError("the encryption key of these conversations is destroyed")
        return self._remember(await self._unwrapped(tenant, row))

    async def forget_destroyed(self, transaction: Transaction) -> None:
        """Forget the keys that were destroyed since the last call. `transaction`: of EVERY_TENANT."""
        rows = await fetch_all(transaction, _SQL["destroyed"], since=self._looked_at, margin=LOOK_MARGIN)
        for row in rows:
            if row["tenant_id"] is not None:
                self._forget(row["tenant_id"], row["version"])
            self._looked_at = row["looked_at"]

    async def _unwrapped(self, tenant: str, row: Row) -> TenantKey:
        version, wrapped = row["version"], row["wrapped_key"]
        kept = self._kept.get((tenant, version))
        if kept is None or kept[0] != wrapped:
            kept = wrapped, await asyncio.to_thread(self._master.unwrap, wrapped)
            while len(self._kept) >= KEPT_KEYS:
                self._kept.pop(next(iter(self._kept)))
            self._kept[tenant, version] = kept
        return TenantKey(tenant, version, kept[1])

    def remembered(self, tenant: str, version: int | None = None) -> TenantKey | None:
        """A key that this process has used before, for use while PostgreSQL is away. `version`: None for the key that
        was used last.
        """
        key: TenantKey | None = self._remembered.get((tenant, version))
        return key

    def _remember(self, key: TenantKey) -> TenantKey:
        self._remembered[key.tenant, key.version] = self._remembered[key.tenant, None] = key
        return key

    def _forget(self, tenant: str, version: int) -> None:
        last = self._remembered.get((tenant, None))
        self._remembered.pop((tenant, version), None)
        self._kept.pop((tenant, version), None)
        if last is not None and last.version == version:
            del self._remembered[tenant, None]

"""What tenants say, encrypted at rest.

Each tenant has a key of its own, which is stored wrapped by the master key (RFC 3394). Each text is sealed with a key
that is derived from it and from random bytes (AES-256-GCM with a derived key): no key seals two texts, so that nobody
has to count how many a tenant's key has sealed. A sealed text belongs to its place: tenant, table, row and column are
authenticated with it, so that it cannot be moved to another row. To destroy a tenant's key is to destroy its texts,
also in backups of the tables that are made later; earlier ones have the key, wrapped by the master key of their time.
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
from psycopg.rows import DictRow

from api.state.postgres.database import EVERY_TENANT, Transaction, fetch_all, fetch_one
from api.state.postgres.queries import queries
from cluster.errors import ServingError

KEY_BYTES = 32
NONCE_BYTES = 12
SALT_BYTES = 16
DERIVED = b"\xb7K1:"
"""What is sealed with a derived key begins so. Texts of an older Baton begin with a random nonce."""
LOOK_MARGIN = timedelta(minutes=2)
"""A transaction that destroys a key takes less, so that none is overlooked that was committed late."""
KEPT_KEYS = 10_000
"""Tenants' keys that need not be unwrapped again."""

_SQL = queries("keys.sql")


@runtime_checkable
class MasterKey(Protocol):
    """What wraps the tenants' keys: a key at hand, or a key management service. Called in threads: it may block."""

    name: str
    """Stored with what it has wrapped."""

    def wrap(self, key: bytes) -> bytes:
        """Raises StateUnavailable where it may succeed later."""
        ...

    def unwrap(self, wrapped: bytes) -> bytes:
        """Raises ServingError for what it has not wrapped, StateUnavailable where it may succeed later."""
        ...


class LocalMasterKey:
    """32 bytes that the operator keeps; and those from before, as long as something is wrapped with them."""

    def __init__(self, *keys: bytes) -> None:
        """`keys`: the first one wraps. Raises ValueError for a key of another length."""
        for key in keys:
            if len(key) != KEY_BYTES:
                raise ValueError(f"the master key has {len(key)} bytes, not {KEY_BYTES}")
        self.name = "local"
        self._keys = keys
        self._path: Path | None = None

    @classmethod
    def in_file(cls, path: Path) -> "LocalMasterKey":
        """Made at the first start. Whoever loses it loses the conversations. Raises OSError, ValueError."""
        path.parent.mkdir(mode=0o711, parents=True, exist_ok=True)  # the services beside it may have users of their own
        if not path.exists():
            with NamedTemporaryFile(dir=path.parent) as made:  # which nobody else may read
                made.write(os.urandom(KEY_BYTES))
                made.flush()
                os.fsync(made.fileno())
                with suppress(FileExistsError):  # another process was quicker: its key counts
                    os.link(made.name, path)
        made_of = cls(*_keys_in(path))
        made_of._path = path
        return made_of

    def rotate(self) -> None:
        """A new one, in front of the last one in the file. Raises ValueError for one that is in no file, OSError."""
        if self._path is None:
            raise ValueError("the master key is not in a file of Baton's: give a new one in front of it")
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
        raise ServingError("the master key is not the one that the conversations were written with")

    def _look(self) -> None:
        """It may have been rotated."""
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
        """`place`: table, row and column."""
        head = os.urandom(SALT_BYTES + NONCE_BYTES)
        key = hmac.digest(self.key, DERIVED + head[:SALT_BYTES], "sha256")
        return DERIVED + head + AESGCM(key).encrypt(head[SALT_BYTES:], text, self._where(place))

    def unseal(self, sealed: bytes, place: str) -> bytes:
        """Raises ServingError for what was not sealed with this key in this place."""
        salted = len(DERIVED) + SALT_BYTES
        if sealed.startswith(DERIVED):
            with suppress(InvalidTag):  # or else it is a nonce that begins so
                key = hmac.digest(self.key, sealed[:salted], "sha256")
                return _opened(key, sealed[salted:], self._where(place))
        try:
            return _opened(self.key, sealed, self._where(place))
        except (InvalidTag, ValueError) as error:
            raise ServingError(f"{place} cannot be read: it was changed, or written with another key") from error

    def derived(self, purpose: str) -> bytes:
        """A key for something else than sealing; gone when this one is."""
        return HKDF(SHA256(), KEY_BYTES, None, self._where(purpose)).derive(self.key)

    def _where(self, place: str) -> bytes:
        return f"{self.tenant}|{place}".encode()


def _opened(key: bytes, sealed: bytes, where: bytes) -> bytes:
    return AESGCM(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], where)


class TenantKeys:
    def __init__(self, master: MasterKey) -> None:
        self._master = master
        self._kept: dict[tuple[str, int], tuple[bytes, bytes]] = {}
        """As they are wrapped, and as they are."""
        self._names = os.urandom(KEY_BYTES)
        """What texts are hashed with."""
        self._looked_at: datetime | None = None
        """For keys that are destroyed, by PostgreSQL's clock."""
        self._remembered: LRUCache[tuple[str, int | None], TenantKey] = LRUCache(KEPT_KEYS)

    async def check(self, transaction: Transaction) -> None:
        """That the master key is the one of this database: `transaction` is in the name of every tenant. The first
        one to come makes it so. Raises ServingError.
        """
        row = await fetch_one(transaction, _SQL["oldest"])
        if row is not None:
            await self._unwrapped(row["tenant_id"], row)
        self._names = (await self.newest(transaction, EVERY_TENANT)).derived("names")

    def hashed(self, text: str) -> str:
        """The same in all replicas that have reached PostgreSQL. Nobody can check a guess of the text by it."""
        return hmac.digest(self._names, text.encode(), "sha256").hex()

    async def newest(self, transaction: Transaction, tenant: str) -> TenantKey:
        """To seal with; a new tenant gets one."""
        row = await fetch_one(transaction, _SQL["newest"], tenant=tenant)
        if row is None:
            await transaction.execute(_SQL["add_tenant"], {"tenant": tenant})
            return await self.add(transaction, tenant)
        return self._remember(await self._unwrapped(tenant, row))

    async def add(self, transaction: Transaction, tenant: str) -> TenantKey:
        """A new one to seal with; or the one that somebody else has just made."""
        wrapped = await asyncio.to_thread(self._master.wrap, os.urandom(KEY_BYTES))
        values = {"tenant": tenant, "wrapped_key": wrapped, "master_key": self._master.name}
        await transaction.execute(_SQL["add"], values)
        row = await fetch_one(transaction, _SQL["newest"], tenant=tenant)
        assert row is not None
        return self._remember(await self._unwrapped(tenant, row))

    async def rewrapped(self, wrapped: bytes) -> dict[str, Any] | None:
        """By the master key of today; None where it has wrapped it just so. Raises ServingError."""
        again = await asyncio.to_thread(lambda: self._master.wrap(self._master.unwrap(wrapped)))
        return None if again == wrapped else {"wrapped_key": again, "master_key": self._master.name}

    async def all(self, transaction: Transaction, tenant: str) -> list[TenantKey]:
        """That have not been destroyed, the oldest first."""
        rows = await fetch_all(transaction, _SQL["all"], tenant=tenant)
        return [await self._unwrapped(tenant, row) for row in rows]

    async def of_rows(self, transaction: Transaction, tenant: str, rows: list[DictRow]) -> dict[int, TenantKey]:
        """To unseal them with, by their `key_version`. Raises ServingError where one has been destroyed."""
        versions = {row["key_version"] for row in rows}
        return {version: await self.of_version(transaction, tenant, version) for version in versions}

    async def of_version(self, transaction: Transaction, tenant: str, version: int) -> TenantKey:
        """To unseal with. Raises ServingError where it has been destroyed."""
        row = await fetch_one(transaction, _SQL["of_version"], tenant=tenant, version=version)
        if row is None:
            self._forget(tenant, version)
            raise ServingError("the key of these conversations has been destroyed")
        return self._remember(await self._unwrapped(tenant, row))

    async def forget_destroyed(self, transaction: Transaction) -> None:
        """Those that have been destroyed since the last time. `transaction`: in the name of every tenant."""
        rows = await fetch_all(transaction, _SQL["destroyed"], since=self._looked_at, margin=LOOK_MARGIN)
        for row in rows:
            if row["tenant_id"] is not None:
                self._forget(row["tenant_id"], row["version"])
            self._looked_at = row["looked_at"]

    async def _unwrapped(self, tenant: str, row: DictRow) -> TenantKey:
        version, wrapped = row["version"], row["wrapped_key"]
        kept = self._kept.get((tenant, version))
        if kept is None or kept[0] != wrapped:
            kept = wrapped, await asyncio.to_thread(self._master.unwrap, wrapped)
            while len(self._kept) >= KEPT_KEYS:
                self._kept.pop(next(iter(self._kept)))
            self._kept[tenant, version] = kept
        return TenantKey(tenant, version, kept[1])

    def remembered(self, tenant: str, version: int | None = None) -> TenantKey | None:
        """One that this process has used before, for when PostgreSQL is away. `version`: None for the last one."""
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

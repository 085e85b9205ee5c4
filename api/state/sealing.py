"""What tenants say, encrypted at rest.

Each tenant has a key of its own (AES-256-GCM), which is stored wrapped by the master key (RFC 3394). A sealed text
belongs to its place: tenant, table, row and column are authenticated with it, so that it cannot be moved to another
row. To destroy a tenant's key is to destroy its texts, in all backups too.
"""

import asyncio
import hmac
import os
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import NamedTuple, Protocol, runtime_checkable

from cachetools import LRUCache
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap, aes_key_wrap
from psycopg.rows import DictRow

from api.state.database import EVERY_TENANT, Transaction, fetch_all, fetch_one
from api.state.queries import queries
from cluster.errors import ServingError

KEY_BYTES = 32
NONCE_BYTES = 12
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
    """32 bytes that the operator keeps."""

    def __init__(self, key: bytes) -> None:
        """Raises ValueError for a key of another length."""
        if len(key) != KEY_BYTES:
            raise ValueError(f"the master key has {len(key)} bytes, not {KEY_BYTES}")
        self.name = "local"
        self._key = key

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
        return cls(path.read_bytes())

    def wrap(self, key: bytes) -> bytes:
        return aes_key_wrap(self._key, key)

    def unwrap(self, wrapped: bytes) -> bytes:
        try:
            return aes_key_unwrap(self._key, wrapped)
        except InvalidUnwrap as error:
            raise ServingError("the master key is not the one that the conversations were written with") from error


class TenantKey(NamedTuple):
    tenant: str
    version: int
    key: bytes

    def __repr__(self) -> str:
        return f"TenantKey({self.tenant!r}, {self.version})"  # no log may show the key

    def seal(self, text: bytes, place: str) -> bytes:
        """`place`: table, row and column."""
        nonce = os.urandom(NONCE_BYTES)
        return nonce + AESGCM(self.key).encrypt(nonce, text, self._where(place))

    def unseal(self, sealed: bytes, place: str) -> bytes:
        """Raises ServingError for what was not sealed with this key in this place."""
        try:
            return AESGCM(self.key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], self._where(place))
        except InvalidTag as error:
            raise ServingError(f"{place} cannot be read: it was changed, or written with another key") from error

    def derived(self, purpose: str) -> bytes:
        """A key for something else than sealing; gone when this one is."""
        return HKDF(SHA256(), KEY_BYTES, None, self._where(purpose)).derive(self.key)

    def _where(self, place: str) -> bytes:
        return f"{self.tenant}|{place}".encode()


class TenantKeys:
    def __init__(self, master: MasterKey) -> None:
        self._master = master
        self._kept: dict[bytes, bytes] = {}
        """By what they are wrapped as."""
        self._names = os.urandom(KEY_BYTES)
        """What texts are hashed with."""
        self._remembered: LRUCache[tuple[str, int | None], TenantKey] = LRUCache(KEPT_KEYS)

    async def check(self, transaction: Transaction) -> None:
        """That the master key is the one of this database: `transaction` is in the name of every tenant. The first
        one to come makes it so. Raises ServingError.
        """
        row = await fetch_one(transaction, _SQL["oldest"])
        if row is not None:
            await self._unwrapped(row["wrapped_key"])
        self._names = (await self.newest(transaction, EVERY_TENANT)).derived("names")

    def hashed(self, text: str) -> str:
        """The same in all replicas that have reached PostgreSQL. Nobody can check a guess of the text by it."""
        return hmac.digest(self._names, text.encode(), "sha256").hex()

    async def newest(self, transaction: Transaction, tenant: str) -> TenantKey:
        """To seal with; a new tenant gets one."""
        row = await fetch_one(transaction, _SQL["newest"], tenant=tenant)
        if row is None:
            wrapped = await asyncio.to_thread(self._master.wrap, os.urandom(KEY_BYTES))
            await transaction.execute(_SQL["add_tenant"], {"tenant": tenant})
            await transaction.execute(
                _SQL["add"], {"tenant": tenant, "wrapped_key": wrapped, "master_key": self._master.name}
            )
            row = await fetch_one(transaction, _SQL["newest"], tenant=tenant)
            assert row is not None
        return self._remember(TenantKey(tenant, row["version"], await self._unwrapped(row["wrapped_key"])))

    async def all(self, transaction: Transaction, tenant: str) -> list[TenantKey]:
        """That have not been destroyed, the oldest first."""
        rows = await fetch_all(transaction, _SQL["all"], tenant=tenant)
        return [TenantKey(tenant, row["version"], await self._unwrapped(row["wrapped_key"])) for row in rows]

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
        return self._remember(TenantKey(tenant, version, await self._unwrapped(row["wrapped_key"])))

    async def _unwrapped(self, wrapped: bytes) -> bytes:
        if wrapped not in self._kept:
            key = await asyncio.to_thread(self._master.unwrap, wrapped)
            while len(self._kept) >= KEPT_KEYS:
                self._kept.pop(next(iter(self._kept)))
            self._kept[wrapped] = key
        return self._kept[wrapped]

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
        if last is not None and last.version == version:
            del self._remembered[tenant, None]

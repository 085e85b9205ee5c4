"""One transaction of one tenant: its statements get the tenant, and its texts the keys of the tenant."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from api.state.encryption.tenant_keys import TenantKey, TenantKeys
from api.state.postgres.database import TRANSACTION_TIMEOUT_S, Database, Query, Row, Transaction, fetch_all, fetch_one


class TenantTransaction:
    """Every statement may name the tenant as `%(tenant)s`. Row-level security hides the rows of other tenants, except
    in a transaction of `EVERY_TENANT`.
    """

    def __init__(self, connection: Transaction, tenant: str, keys: TenantKeys) -> None:
        self.connection = connection
        self.tenant = tenant
        self._keys = keys

    def of(self, tenant: str) -> "TenantTransaction":
        """The same transaction in the name of another tenant, for a job that sees the rows of every tenant."""
        return TenantTransaction(self.connection, tenant, self._keys)

    async def execute(self, query: Query, **values: object) -> int:
        """Returns the number of rows that the statement has found or changed."""
        return (await self.connection.execute(query, {"tenant": self.tenant, **values})).rowcount

    async def fetch_all(self, query: Query, **values: object) -> list[Row]:
        return await fetch_all(self.connection, query, tenant=self.tenant, **values)

    async def fetch_one(self, query: Query, **values: object) -> Row | None:
        return await fetch_one(self.connection, query, tenant=self.tenant, **values)

    async def sealing_key(self) -> TenantKey:
        """The newest key of the tenant. A new tenant gets its first key."""
        return await self._keys.newest(self.connection, self.tenant)

    async def key(self, version: int) -> TenantKey:
        """Raises ServingError if the key is destroyed."""
        return await self._keys.of_version(self.connection, self.tenant, version)

    async def keys(self, versions: Iterable[int]) -> dict[int, TenantKey]:
        """The keys of these versions, by version. Raises ServingError if one of them is destroyed."""
        return {version: await self.key(version) for version in set(versions)}

    async def keys_of(self, rows: list[Row]) -> dict[int, TenantKey]:
        """The keys that open these rows, by the `key_version` of a row. Raises ServingError if one is destroyed."""
        return await self.keys(row["key_version"] for row in rows)

    async def all_keys(self) -> list[TenantKey]:
        """All keys of the tenant that are not destroyed, the oldest first."""
        return await self._keys.all(self.connection, self.tenant)


class TenantDatabase:
    """The database and the keys of its tenants: what every store is made of."""

    def __init__(self, database: Database, keys: TenantKeys) -> None:
        self.database = database
        self._keys = keys

    @asynccontextmanager
    async def transaction(
        self, tenant: str, timeout_s: float = TRANSACTION_TIMEOUT_S, *, adds: int = 0, lock: int | None = None
    ) -> AsyncIterator[TenantTransaction]:
        """The arguments and errors of `Database.transaction`."""
        async with self.database.transaction(tenant, timeout_s, adds=adds, lock=lock) as connection:
            yield TenantTransaction(connection, tenant, self._keys)

    def remembered_key(self, tenant: str, version: int) -> TenantKey | None:
        """A key that this process has used before. None if it has not, or has forgotten the key."""
        return self._keys.remembered(tenant, version)

"""Accounts in a real PostgreSQL, for tests."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple, Self

from api.state.postgres.accounts.api_keys import ApiKeyStore, KeyChange, KeyTerms
from api.state.postgres.accounts.known_accounts import KnownAccounts
from api.state.postgres.accounts.rows import IssuedKey
from api.state.postgres.accounts.tenant_accounts import ProjectStore, TenantAccounts
from api.state.postgres.database import Database

OPERATOR = "operator"


class Accounts(NamedTuple):
    database: Database
    tenants: TenantAccounts
    projects: ProjectStore
    keys: ApiKeyStore
    known: KnownAccounts

    @classmethod
    def of(cls, database: Database) -> Self:
        stores = (
            TenantAccounts(database),
            ProjectStore(database),
            ApiKeyStore(database),
            KnownAccounts(lambda: database),
        )
        return cls(database, *stores)

    async def tenant(self, name: str = "team") -> str:
        """The id of a new tenant."""
        made, _ = await self.tenants.create(name, OPERATOR)
        return made.id

    async def change(self, key: str, **changes: object) -> None:
        await self.keys.change(key, KeyChange(**changes), OPERATOR)  # type: ignore[arg-type]  # any changes

    async def key(self, tenant: str, **terms: object) -> IssuedKey:
        return await self.keys.create(tenant, KeyTerms(**{"name": "laptop", **terms}), OPERATOR)  # type: ignore[arg-type]  # any terms


@asynccontextmanager
async def accounts_at(url: str) -> AsyncIterator[Accounts]:
    """On connections of their own."""
    database = Database(url, 2)
    await database.open()
    try:
        await database.migrate()
        yield Accounts.of(database)
    finally:
        await database.close()

"""What operators reach of accounts."""

from typing import NamedTuple, Self

from api.state.postgres.accounts.api_keys import ApiKeyStore
from api.state.postgres.accounts.service_changes import ServiceChanges
from api.state.postgres.accounts.tenant_accounts import ProjectStore, TenantAccounts
from api.state.postgres.database import Database


class AccountStores(NamedTuple):
    tenants: TenantAccounts
    projects: ProjectStore
    keys: ApiKeyStore
    service: ServiceChanges

    @classmethod
    def of(cls, database: Database) -> Self:
        return cls(TenantAccounts(database), ProjectStore(database), ApiKeyStore(database), ServiceChanges(database))

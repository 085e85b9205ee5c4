"""A transaction of a tenant: its statements get the tenant, and it has the keys of the tenant."""

import pytest

from api.state.lifecycle import ChatState
from api.state.postgres.database import EVERY_TENANT
from api.state.postgres.tenant_transaction import TenantDatabase
from cluster.errors import ServingError


@pytest.fixture
def database(state: ChatState) -> TenantDatabase:
    assert state._database is not None
    return TenantDatabase(state._database, state._keys)


async def test_statements_get_the_tenant(database: TenantDatabase) -> None:
    async with database.transaction("alice") as transaction:
        assert await transaction.fetch_one("SELECT %(tenant)s::text AS name") == {"name": "alice"}
        assert await transaction.fetch_all("SELECT %(tenant)s::text AS name, %(x)s::int AS x", x=1) == [
            {"name": "alice", "x": 1}
        ]


async def test_execute_counts_the_rows(database: TenantDatabase) -> None:
    async with database.transaction("alice") as transaction:
        await transaction.sealing_key()
        assert await transaction.execute("SELECT FROM tenant_keys WHERE tenant_id = %(tenant)s") == 1
        assert await transaction.execute("SELECT FROM tenant_keys WHERE tenant_id = 'nobody'") == 0


async def test_text_that_one_transaction_seals_another_opens(database: TenantDatabase) -> None:
    async with database.transaction("alice") as transaction:
        key = await transaction.sealing_key()
    async with database.transaction("alice") as transaction:
        (opened,) = (await transaction.keys_of([{"key_version": key.version}])).values()
        assert opened.unseal(key.seal(b"hello", "here"), "here") == b"hello"
        assert await transaction.all_keys() == [key]


async def test_key_that_does_not_exist_is_an_error(database: TenantDatabase) -> None:
    async with database.transaction("alice") as transaction:
        with pytest.raises(ServingError):
            await transaction.key(100)


async def test_job_of_every_tenant_has_the_keys_of_each(database: TenantDatabase) -> None:
    keys = []
    for tenant in ("alice", "bob"):
        async with database.transaction(tenant) as transaction:
            keys.append(await transaction.sealing_key())
    async with database.transaction(EVERY_TENANT) as transaction:
        assert [await transaction.of(key.tenant).key(key.version) for key in keys] == keys

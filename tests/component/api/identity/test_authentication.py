"""Authentication over a real PostgreSQL: two replicas, changes of operators, and a server that is away."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from api.identity.authentication import Authentication
from api.identity.keys import new_key
from api.state.lifecycle import ChatState
from api.state.postgres import database as module
from api.state.postgres.accounts.api_keys import KeyTerms
from cluster.config.state import StateConfig
from cluster.errors import Forbidden, ServingError, StateUnavailable, Unauthorized
from tests.component.accounts import OPERATOR, Accounts, accounts_at
from tests.component.emptied import emptied
from tests.component.killable_postgres import KillablePostgres

WITHIN_S = 1.0
"""How soon every replica follows a change."""
LATE_S = 3.0
"""By which a busy machine may see an end of validity too late."""


@asynccontextmanager
async def replica_at(url: str, offline_s: float = 300.0) -> AsyncIterator[Authentication]:
    """A replica with connections of its own, which follows the accounts."""
    async with accounts_at(url) as own:
        authentication = Authentication(own.known, time.time, offline_s)
        authentication.start()
        try:
            yield authentication
        finally:
            await authentication.close()


@pytest.fixture
async def accounts(postgres: str) -> AsyncIterator[Accounts]:
    """As an operator reaches them."""
    emptied(postgres)
    async with accounts_at(postgres) as found:
        yield found


@pytest.fixture
async def replicas(postgres: str, accounts: Accounts) -> AsyncIterator[list[Authentication]]:
    async with replica_at(postgres) as first, replica_at(postgres) as second:
        yield [first, second]


async def seconds_until(error: type[ServingError] | None, ask: Callable[[], Awaitable[object]]) -> float:
    """How long it takes until asking ends with an error of this type, or with none."""
    begun = time.monotonic()
    while time.monotonic() < begun + 20:
        try:
            await ask()
            found = None
        except ServingError as raised:
            found = type(raised)
        if found is error:
            return time.monotonic() - begun
        await asyncio.sleep(0.01)
    raise TimeoutError(f"{error} is not raised")


async def all_until(error: type[ServingError] | None, replicas: list[Authentication], text: str) -> float:
    """How long it takes until all replicas answer so."""
    return max(
        await asyncio.gather(*(seconds_until(error, lambda one=one: one.identify(text)) for one in replicas))  # type: ignore[misc]  # a lambda with a default
    )


async def test_revocation_is_seen_by_each_replica_within_a_second(
    accounts: Accounts, replicas: list[Authentication]
) -> None:
    tenant = await accounts.tenant()
    issued = await accounts.key(tenant)
    for replica in replicas:
        assert (await replica.identify(issued.text)).key == issued.key.id
    for _ in range(3):
        issued = await accounts.key(tenant)
        await all_until(None, replicas, issued.text)
        await accounts.keys.revoke(issued.key.id, OPERATOR)
        assert await all_until(Unauthorized, replicas, issued.text) < WITHIN_S


async def test_new_key_works_at_once(accounts: Accounts, replicas: list[Authentication]) -> None:
    tenant = await accounts.tenant()
    for _ in range(3):
        issued = await accounts.key(tenant)
        for replica in replicas:
            assert (await replica.identify(issued.text)).tenant == tenant


async def test_suspension_and_its_end_are_seen_within_a_second(
    accounts: Accounts, replicas: list[Authentication]
) -> None:
    tenant, other = await accounts.tenant(), await accounts.tenant("other")
    issued, of_other = await accounts.key(tenant), await accounts.key(other)
    await all_until(None, replicas, issued.text)
    await all_until(None, replicas, of_other.text)
    await accounts.tenants.suspend(tenant, OPERATOR)
    assert await all_until(Forbidden, replicas, issued.text) < WITHIN_S
    assert await all_until(None, replicas, of_other.text) < 0.1
    await accounts.tenants.resume(tenant, OPERATOR)
    assert await all_until(None, replicas, issued.text) < WITHIN_S


async def test_rotated_key_ends_at_its_time_on_a_replica_that_remembers_it(
    accounts: Accounts, replicas: list[Authentication]
) -> None:
    old = await accounts.key(await accounts.tenant())
    await all_until(None, replicas, old.text)
    new = await accounts.keys.rotate(old.key.id, OPERATOR, overlap_s=2.0)
    begun = time.monotonic()
    await all_until(None, replicas, new.text)
    await all_until(Unauthorized, replicas, old.text)
    assert 1.5 < time.monotonic() - begun < 2.0 + LATE_S


async def test_burst_of_keys_is_looked_up_in_few_queries(accounts: Accounts, replicas: list[Authentication]) -> None:
    tenant = await accounts.tenant()
    texts = [(await accounts.key(tenant)).text for _ in range(50)]
    queries = 0
    look_up = accounts.known.look_up
    counted = Authentication(accounts.known, time.time, 300.0)

    async def counting(digests: list[bytes]) -> object:
        nonlocal queries
        queries += 1
        return await look_up(digests)

    counted._keys._look_up = counting  # type: ignore[assignment]  # counts the calls
    found = await asyncio.gather(*(counted.identify(text) for text in texts for _ in range(4)))
    assert queries == 1 and {principal.tenant for principal in found} == {tenant}
    await counted.close()


async def test_uses_are_written(accounts: Accounts, replicas: list[Authentication]) -> None:
    tenant = await accounts.tenant()
    issued = await accounts.key(tenant)
    await replicas[0].identify(issued.text)
    await replicas[0].write_uses()
    (key,) = (await accounts.keys.page(tenant, None, None, 1)).data
    assert key.last_used_at is not None and abs(key.last_used_at.timestamp() - time.time()) < 5


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KillablePostgres]:
    made = KillablePostgres(tmp_path_factory.mktemp("accounts") / "postgres")
    yield made
    made.close()


@pytest.fixture
def own_postgres(server: KillablePostgres, monkeypatch: pytest.MonkeyPatch) -> KillablePostgres:
    """Up, and empty."""
    monkeypatch.setattr(module, "CONNECTION_TIMEOUT_S", 0.2)
    server.up()
    emptied(server.url)
    return server


async def test_known_keys_go_on_while_postgres_is_away_and_unknown_ones_are_to_be_retried(
    own_postgres: KillablePostgres,
) -> None:
    async with accounts_at(own_postgres.url) as accounts, replica_at(own_postgres.url, offline_s=4.0) as replica:
        tenant = await accounts.tenant()
        known, unknown = await accounts.key(tenant), await accounts.key(tenant)
        nobodys = await accounts.key(tenant)
        await replica.identify(known.text)
        begun = time.monotonic()
        own_postgres.down()
        assert (await replica.identify(known.text)).tenant == tenant
        for text in (unknown.text, nobodys.text):
            with pytest.raises(StateUnavailable) as caught:
                await replica.identify(text)
            assert (caught.value.http_status, caught.value.code) == (503, "state_unavailable")
        assert (await replica.identify(known.text)).tenant == tenant
        await seconds_until(StateUnavailable, lambda: replica.identify(known.text))
        assert 3.0 < time.monotonic() - begun < 4.0 + LATE_S
        own_postgres.up()
        assert await seconds_until(None, lambda: replica.identify(unknown.text)) < 15
        await seconds_until(None, lambda: replica.identify(known.text))
        await seconds_until(None, lambda: accounts.keys.revoke(known.key.id, OPERATOR))
        await seconds_until(Unauthorized, lambda: replica.identify(known.text))


async def test_replica_that_has_not_reached_postgres_yet_has_keys_retried(
    postgres: str, redis: str, tmp_path: Path
) -> None:
    emptied(postgres)
    urls: dict[str, Any] = {"database_url": postgres, "redis_url": redis}
    state = ChatState(StateConfig(**urls, data_dir=str(tmp_path)), serves=True)
    authentication = Authentication(state.known_accounts, time.time, 300.0)
    text = new_key(bytes(48)).text
    with pytest.raises(StateUnavailable):
        await authentication.identify(text)
    with pytest.raises(StateUnavailable):
        await authentication.look()
    await state.look()
    tenant, _ = await state.accounts().tenants.create("team", OPERATOR)
    issued = await state.accounts().keys.create(tenant.id, KeyTerms(name="laptop"), OPERATOR)
    assert (await authentication.identify(issued.text)).tenant == tenant.id
    await authentication.close()
    await state.close()

"""The counters of budgets, as the reconciliation reads and corrects them, in a real Redis."""

from collections.abc import AsyncIterator

import pytest

from api.identity.caller import Caller
from api.limits import redis_budgets
from api.limits.limits import Amounts, Bucket, ScopeKind, buckets_of
from api.limits.redis_budgets import RedisBudgets
from api.limits.reservations import Reservations
from api.metering.differences import BudgetScope
from api.state.redis.client import RedisClient
from cluster.config.tenants.limits import Limits, LimitsConfig
from tests.expected import present
from tests.unit.api.limits.a_request import TENANT

A_LOT = Limits(
    tokens_per_minute=10**6, tokens_per_day=10**6, tokens_per_month=10**6, cost_per_day=10**6, concurrent_requests=9
)


def hashed(text: str) -> str:
    return f"h-{text}"


@pytest.fixture
async def client(redis: str) -> AsyncIterator[RedisClient]:
    client = RedisClient()
    client.reach(redis)
    await client.run(("FLUSHALL",))
    yield client
    await client.close()


@pytest.fixture
async def reservations(client: RedisClient) -> AsyncIterator[Reservations]:
    reservations = Reservations(client, LimitsConfig(), 1)
    yield reservations
    await reservations.close(1.0)


@pytest.fixture
def counters(client: RedisClient) -> RedisBudgets:
    return RedisBudgets(client, hashed)


async def all_settled(counters: RedisBudgets) -> dict[BudgetScope, int]:
    found: dict[BudgetScope, int] = {}
    for tenant, scopes in present(await counters.scopes()).items():
        found |= present(await counters.settled(tenant, scopes))
    return found


def drawn_on(tenant: str = TENANT) -> tuple[Bucket, ...]:
    caller = Caller(tenant=tenant, project="proj_1", key="key_1", key_lineage="key_1", end_user="u")
    return buckets_of(caller, "m", dict.fromkeys(ScopeKind, A_LOT), hashed)


async def test_running_requests_are_not_settled(reservations: Reservations, counters: RedisBudgets) -> None:
    done = await reservations.reserve(TENANT, drawn_on(), Amounts(1, 100, 50))
    running = await reservations.reserve(TENANT, drawn_on(), Amounts(1, 1000, 500))
    done.settle(Amounts(1, 60, 30))
    await reservations.settled()
    found = await all_settled(counters)
    assert len(found) == len(ScopeKind) * 3
    assert {amount for scope, amount in found.items() if scope.is_cost} == {30}
    assert {amount for scope, amount in found.items() if not scope.is_cost} == {60}
    assert {scope.scope_id for scope in found} == {
        "key:key_1",
        "project:proj_1",
        "tenant:",
        "end_user:h-u",
        "model:h-m",
    }
    running.refund()


async def test_scope_has_the_id_by_which_the_ledger_finds_it(counters: RedisBudgets) -> None:
    ids = {"tenant": "", "project": "proj_1", "key": "key_1", "end_user": "u", "model": "m"}
    found = {kind: counters.scope_id(kind, id) for kind, id in ids.items()}
    assert found == {
        "tenant": "tenant:",
        "project": "project:proj_1",
        "key": "key:key_1",
        "end_user": "end_user:h-u",
        "model": "model:h-m",
    }


async def test_correction_reaches_the_one_budget(reservations: Reservations, counters: RedisBudgets) -> None:
    for tenant in (TENANT, "f" * 16):
        (await reservations.reserve(tenant, drawn_on(tenant), Amounts(1, 100, 50))).settle(Amounts(1, 100, 50))
    await reservations.settled()
    before = await all_settled(counters)
    for scope in before:
        assert await counters.add(scope, 7)
        after = await all_settled(counters)
        assert {one: after[one] - before[one] for one in after if after[one] != before[one]} == {scope: 7}
        before = after
    assert {scope.tenant for scope in before} == {TENANT, "f" * 16}


async def test_corrected_budget_decides(reservations: Reservations, counters: RedisBudgets) -> None:
    which = tuple(bucket._replace(capacity=100) for bucket in drawn_on() if bucket.kind == "td")
    (await reservations.reserve(TENANT, which, Amounts(1, 100))).settle(Amounts(1, 100))
    await reservations.settled()
    for scope in await all_settled(counters):
        assert await counters.add(scope, -40)
    granted = await reservations.reserve(TENANT, which, Amounts(1, 40))
    assert {room.remaining for room in granted.rooms} == {0}


async def test_budget_of_another_day_stays(reservations: Reservations, counters: RedisBudgets) -> None:
    (await reservations.reserve(TENANT, drawn_on(), Amounts(1, 100))).settle(Amounts(1, 100))
    await reservations.settled()
    before = await all_settled(counters)
    for scope in before:
        length_s = scope.end - scope.start
        assert await counters.add(scope._replace(start=scope.start - length_s, end=scope.start), 7)
    assert await all_settled(counters) == before


async def test_busy_tenant_waits(
    reservations: Reservations, counters: RedisBudgets, client: RedisClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = [await reservations.reserve(TENANT, drawn_on(), Amounts(1, 1)) for _ in range(3)]
    monkeypatch.setattr(redis_budgets, "MOST_OPEN", 2)
    assert await all_settled(RedisBudgets(client, hashed)) == {}
    assert len(await all_settled(counters)) > 0
    for one in running:
        one.refund()


async def test_redis_that_is_away(counters: RedisBudgets) -> None:
    away = RedisBudgets(RedisClient(), hashed)
    assert await away.scopes() is None
    assert await away.settled(TENANT, ["key:k"]) is None
    assert not await away.add(BudgetScope("key", TENANT, "key:k", "td", False, 0.0, 86_400.0), 1)

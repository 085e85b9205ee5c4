"""Reservations of several replicas on one Redis, which dies, hangs and forgets."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from prometheus_client import REGISTRY
from redis import Redis

from api.identity.caller import Caller
from api.limits import seeds, settlements
from api.limits.budget import Denied, Entry
from api.limits.limits import Amounts, Bucket, LimitScope, ScopeKind, buckets_of
from api.limits.reservations import Reservation, Reservations
from api.state.redis import client as redis_client
from api.state.redis.client import RedisClient
from cluster.config.tenants.limits import Limits, LimitsConfig
from cluster.errors import (
    InvalidRequest,
    LimitsUnavailable,
    RateLimited,
    ServingError,
    StateUnavailable,
)
from tests.component.killable_redis import KillableRedis
from tests.expected import present
from tests.unit.api.limits.a_request import TENANT, buckets
from tests.unit.fake_ports import loop_rounds

NUM_REPLICAS = 3
PATIENCE_S = 1.5
"""For an answer of Redis: more than a busy machine needs."""
SETTLED_WITHIN_S = 20.0
SHORT_S = 0.5
"""A lifetime that a test can wait for."""

MakeReplicas = Callable[..., list[Reservations]]


class FakeLedger:
    """Says that each scope has spent `spent`."""

    def __init__(self, spent: int = 0) -> None:
        self.amount = spent
        self.is_away = False
        self.asked: list[tuple[str, LimitScope, int]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def spent(self, tenant: str, scope: LimitScope, start_ms: int, end_ms: int) -> Amounts:
        self.asked.append((tenant, scope, start_ms))
        await asyncio.sleep(0)
        await self.gate.wait()
        if self.is_away:
            raise StateUnavailable("PostgreSQL is away", 2.0)
        return Amounts(0, self.amount, self.amount)


@pytest.fixture
async def replicas(killable_redis: KillableRedis, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MakeReplicas]:
    """Makes replicas, each with a connection of its own."""
    monkeypatch.setattr(redis_client, "TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr(redis_client, "ASK_AGAIN_S", 0.05)
    monkeypatch.setattr(settlements, "RETRY_S", 0.05)
    made: list[tuple[Reservations, RedisClient]] = []

    def make(number: int = NUM_REPLICAS, ledger: FakeLedger | None = None, **config: Any) -> list[Reservations]:
        for _ in range(number):
            client = RedisClient()
            client.reach(killable_redis.url)
            made.append((Reservations(client, LimitsConfig(**config), NUM_REPLICAS, ledger), client))
        return [reservations for reservations, _ in made[-number:]]

    yield make
    for reservations, client in made:
        await reservations.close(0)
        await client.close()


async def granted(
    replicas: list[Reservations], number: int, which: tuple[Bucket, ...], asked: Amounts
) -> tuple[list[Reservation], list[ServingError]]:
    """Of `number` requests at the same time, those that were granted, and the errors of the others."""
    tasks = [replicas[index % len(replicas)].reserve(TENANT, which, asked) for index in range(number)]
    results = await asyncio.gather(*tasks, return_exceptions=True)
    errors = [result for result in results if isinstance(result, ServingError)]
    found = [result for result in results if isinstance(result, Reservation)]
    assert len(found) + len(errors) == number, results
    return found, errors


async def all_settled(replica: Reservations) -> None:
    """Redis has all settlements. One that it cannot count would be tried for ever."""
    async with asyncio.timeout(SETTLED_WITHIN_S):
        await replica.settled()


async def left(replica: Reservations, which: tuple[Bucket, ...]) -> list[int]:
    """What each bucket has left."""
    probe = await replica.reserve(TENANT, which, Amounts(0))
    probe.refund()
    await all_settled(replica)
    return [room.remaining for room in probe.rooms]


def decisions(decision: str, counted: str) -> float:
    labels = {"decision": decision, "counted": counted}
    return REGISTRY.get_sample_value("baton_limit_decisions_total", labels) or 0.0


async def test_requests_may_begin_early_where_redis_has_said_that_there_is_ample_room(
    replicas: MakeReplicas, killable_redis: KillableRedis
) -> None:
    which, one = buckets(key=Limits(requests_per_minute=10)), Amounts(1)
    (replica,) = replicas(1)
    assert not replica.expects_room(which, one)
    for _ in range(3):
        await replica.reserve(TENANT, which, one)
    assert [replica.expects_room(which, one) for _ in range(3)] == [True, True, False]  # half of the limit stays
    killable_redis.kill()
    other = buckets(project=Limits(requests_per_minute=3 * 10))
    await replica.reserve(TENANT, other, one)
    assert not replica.expects_room(other, one)  # the replica has granted it alone


async def die(replica: Reservations) -> None:
    """As a process that is killed: nothing is renewed or settled any more."""
    present(replica._renewing).cancel()
    client = replica._script._redis
    await client.close()


async def away(killable_redis: KillableRedis, replica: Reservations) -> None:
    killable_redis.kill()
    with pytest.raises(ServingError):  # a budget of 0 is refused in any case
        await replica.reserve(TENANT, buckets(model=Limits(tokens_per_day=0)), Amounts())


@pytest.mark.parametrize(
    "limits",
    [
        Limits(concurrent_requests=33),
        Limits(tokens_per_day=10_000),
        Limits(cost_per_month=339),
        Limits(tokens_per_minute=9_900),
    ],
    ids=["concurrent", "tokens of a day", "cost of a month", "tokens of a minute"],
)
async def test_parallel_requests_get_exactly_the_limit(replicas: MakeReplicas, limits: Limits) -> None:
    """33 of 300 tokens each. (A minute's 9,900 tokens are 300 more after 1.8 s.) The others may come again: what is
    reserved is not spent.
    """
    began = asyncio.get_running_loop().time()
    found, errors = await granted(replicas(), 200, buckets(key=limits), Amounts(1, 300, 10))
    took_s = asyncio.get_running_loop().time() - began
    more = int(took_s / 1.8) if limits.tokens_per_minute else 0
    assert 33 <= len(found) <= 33 + more
    assert {type(each) for each in errors} == {RateLimited}


async def test_refused_request_takes_nothing_from_the_limits_that_had_room(replicas: MakeReplicas) -> None:
    which = buckets(key=Limits(concurrent_requests=5), tenant=Limits(tokens_per_day=1000))
    found, _ = await granted(replicas(), 100, which, Amounts(1, 10))
    assert len(found) == 5
    for reservation in found:
        reservation.refund()
    (replica,) = replicas(1)
    await asyncio.gather(*(all_settled(each) for each in {reservation._owner for reservation in found}))
    assert await left(replica, which) == [4, 1000]  # the probe is open


async def test_client_that_dies_leaks_nothing_beyond_the_lifetime(replicas: MakeReplicas) -> None:
    which = buckets(key=Limits(concurrent_requests=10, tokens_per_minute=600, tokens_per_day=1000))
    dying, other = replicas(2, reservation_s=SHORT_S)
    found, _ = await granted([dying], 10, which, Amounts(1, 60))
    assert len(found) == 10
    await die(dying)
    assert (await granted([other], 1, which, Amounts(1, 60)))[0] == []
    await asyncio.sleep(SHORT_S + 0.05)
    assert await left(other, which) == [600, 9, 1000]


async def test_request_that_is_never_settled_expires_though_its_replica_lives(replicas: MakeReplicas) -> None:
    which = buckets(key=Limits(concurrent_requests=1))
    (replica,) = replicas(1, reservation_s=SHORT_S)
    found, _ = await granted([replica], 1, which, Amounts())
    del found
    gc.collect()
    await asyncio.sleep(SHORT_S + 0.1)
    assert len((await granted([replica], 1, which, Amounts()))[0]) == 1


async def test_caller_that_is_cancelled_leaves_nothing_for_long(replicas: MakeReplicas) -> None:
    which = buckets(key=Limits(concurrent_requests=1))
    (replica,) = replicas(1, reservation_s=SHORT_S)
    task = asyncio.create_task(replica.reserve(TENANT, which, Amounts()))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.sleep(SHORT_S + 0.05)
    assert len((await granted([replica], 1, which, Amounts()))[0]) == 1


async def test_long_stream_keeps_its_place_and_gives_it_back(replicas: MakeReplicas) -> None:
    which = buckets(key=Limits(concurrent_requests=1, tokens_per_day=100))
    one, other = replicas(2, reservation_s=SHORT_S)
    stream = await one.reserve(TENANT, which, Amounts(1, 90))
    await asyncio.sleep(3 * SHORT_S)
    with pytest.raises(RateLimited):
        await other.reserve(TENANT, which, Amounts(1, 1))
    stream.settle(Amounts(1, 40))
    stream.settle(Amounts(1, 90))
    stream.refund()
    await all_settled(one)
    assert await left(other, which) == [0, 60]


async def test_settlement_whose_answer_is_lost_counts_once(
    replicas: MakeReplicas, killable_redis: KillableRedis
) -> None:
    which = buckets(key=Limits(tokens_per_day=1000, cost_per_month=1000))
    (replica,) = replicas(1)
    first, second = [await replica.reserve(TENANT, which, Amounts(1, 300, 30)) for _ in range(2)]
    killable_redis.hold_up()
    first.settle(Amounts(1, 100, 10))
    await asyncio.sleep(PATIENCE_S + 0.2)  # Redis has it, and will do it
    second.settle(Amounts(1, 50, 5))
    killable_redis.let_go_on()
    await all_settled(replica)
    assert await left(replica, which) == [850, 985]


async def test_reservation_whose_answer_is_lost_is_given_back(
    replicas: MakeReplicas, killable_redis: KillableRedis
) -> None:
    """Redis makes it when it goes on, before or after it hears that nobody wants it."""
    which = buckets(key=Limits(concurrent_requests=3, tokens_per_day=900))
    (replica,) = replicas(1)
    await replica.reserve(TENANT, which, Amounts(1, 300))
    killable_redis.hold_up()
    with pytest.raises(ServingError):  # a share is 300 tokens
        await replica.reserve(TENANT, which, Amounts(1, 301))
    killable_redis.let_go_on()
    await all_settled(replica)
    assert await left(replica, which) == [1, 600]


async def test_reservation_that_comes_after_it_was_given_up_takes_nothing(replicas: MakeReplicas) -> None:
    which = buckets(key=Limits(concurrent_requests=2, tokens_per_day=900))
    (replica,) = replicas(1)
    late = Entry("late", 0, which, Amounts(1, 300))
    given_up = replica._script.begin_settling(TENANT, late, Amounts(0), replica._redis_now_ms())
    assert await replica._script.settled(given_up)
    assert isinstance(await replica._script.reserve(TENANT, late, 60_000, None), Denied)
    assert await left(replica, which) == [1, 900]


async def test_request_that_is_cancelled_while_redis_is_slow_gives_back(
    replicas: MakeReplicas, killable_redis: KillableRedis
) -> None:
    which = buckets(key=Limits(concurrent_requests=2))
    (replica,) = replicas(1)
    await left(replica, which)
    killable_redis.hold_up()
    task = asyncio.create_task(replica.reserve(TENANT, which, Amounts()))
    await loop_rounds(5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    killable_redis.let_go_on()
    await all_settled(replica)
    assert await left(replica, which) == [1]


async def test_request_that_follows_the_end_of_another_one_finds_its_place_free(replicas: MakeReplicas) -> None:
    which = buckets(key=Limits(concurrent_requests=1))
    (replica,) = replicas(1)
    for _ in range(20):
        (await replica.reserve(TENANT, which, Amounts())).settle(Amounts())


async def test_restarted_redis_counts_on_from_the_ledger(replicas: MakeReplicas, killable_redis: KillableRedis) -> None:
    """It has forgotten the script, what was spent and who is open. Requests that run are counted once."""
    which = buckets(key=Limits(concurrent_requests=3, tokens_per_day=1000))
    ledger = FakeLedger(100)
    one, other = replicas(2, ledger, reservation_s=SHORT_S)
    stream = await one.reserve(TENANT, which, Amounts(1, 300))
    assert await left(other, which) == [1, 600]
    killable_redis.kill()
    ledger.amount = 150
    killable_redis.start()
    await asyncio.sleep(SHORT_S)  # the stream is renewed
    assert await left(other, which) == [1, 850]
    await asyncio.sleep(0.002)  # what ends in the millisecond in which the ledger was asked counts as known to it
    stream.settle(Amounts(1, 200))
    await all_settled(one)
    assert await left(other, which) == [2, 650]
    assert [(tenant, scope) for tenant, scope, _ in ledger.asked] == [(TENANT, which[0].scope)] * 2


async def test_requests_that_come_together_share_a_question_to_the_ledger(replicas: MakeReplicas) -> None:
    ledger = FakeLedger(900)
    (replica,) = replicas(1, ledger)
    found, errors = await granted([replica], 50, buckets(tenant=Limits(tokens_per_day=1000)), Amounts(1, 10))
    assert (len(found), len(errors), len(ledger.asked)) == (10, 40, 1)
    assert ledger.asked[0][2] % 86_400_000 == 0


async def test_tokens_and_cost_of_a_scope_are_one_question(replicas: MakeReplicas) -> None:
    ledger = FakeLedger(900)
    (replica,) = replicas(1, ledger)
    which = buckets(tenant=Limits(tokens_per_day=1000, cost_per_day=950))
    assert await left(replica, which) == [100, 50]
    assert len(ledger.asked) == 1


async def test_request_that_another_limit_refuses_asks_the_ledger_nothing(replicas: MakeReplicas) -> None:
    ledger = FakeLedger()
    (replica,) = replicas(1, ledger)
    key = Limits(concurrent_requests=1)
    await replica.reserve(TENANT, buckets(key=key), Amounts(1, 10))
    _, errors = await granted([replica], 50, buckets(key=key, tenant=Limits(tokens_per_month=1000)), Amounts(1, 10))
    assert (len(errors), ledger.asked) == (50, [])


async def test_tenant_with_many_new_scopes_keeps_no_other_tenant_waiting(replicas: MakeReplicas) -> None:
    """Its questions come one after another."""
    ledger = FakeLedger()
    ledger.gate.clear()
    (replica,) = replicas(1, ledger)
    own = {ScopeKind.END_USER: Limits(tokens_per_day=1000)}
    loud = [
        replica.reserve("loud", buckets_of(Caller(tenant="loud", end_user=f"u{user}"), "m", own, str), Amounts(1, 1))
        for user in range(20)
    ]
    quiet = buckets_of(Caller(tenant="quiet", end_user="u"), "m", own, str)
    tasks = [asyncio.create_task(one) for one in (*loud, replica.reserve("quiet", quiet, Amounts(1, 1)))]
    while len(ledger.asked) < 2:
        await loop_rounds(1)
    await loop_rounds(20)
    assert sorted(tenant for tenant, _, _ in ledger.asked) == ["loud", "quiet"]
    ledger.gate.set()
    await asyncio.gather(*tasks)
    assert len(ledger.asked) == 21


async def test_ledger_that_takes_too_long_is_not_waited_for(
    replicas: MakeReplicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seeds, "PATIENCE_S", 0.1)
    ledger = FakeLedger()
    ledger.gate.clear()
    (replica,) = replicas(1, ledger)
    which = buckets(tenant=Limits(tokens_per_day=1000))
    with pytest.raises(LimitsUnavailable, match="what was spent of a budget cannot be looked up now"):
        await replica.reserve(TENANT, which, Amounts(1, 10))
    ledger.gate.set()
    await replica.reserve(TENANT, which, Amounts(1, 10))


async def test_budget_is_refused_while_neither_redis_nor_the_ledger_knows_it(replicas: MakeReplicas) -> None:
    ledger = FakeLedger()
    ledger.is_away = True
    (replica,) = replicas(1, ledger)
    with pytest.raises(LimitsUnavailable, match="what was spent of a budget cannot be looked up now"):
        await replica.reserve(TENANT, buckets(tenant=Limits(tokens_per_day=1000)), Amounts(1, 10))
    await replica.reserve(TENANT, buckets(tenant=Limits(requests_per_minute=1)), Amounts())
    ledger.is_away = False
    await replica.reserve(TENANT, buckets(key=Limits(tokens_per_day=1000)), Amounts(1, 10))


async def test_replicas_share_the_limits_while_redis_is_away(
    replicas: MakeReplicas, killable_redis: KillableRedis
) -> None:
    which = buckets(key=Limits(requests_per_minute=30, concurrent_requests=1000))
    made = replicas()
    await made[0].reserve(TENANT, which, Amounts())
    before = decisions("granted", "locally"), decisions("denied", "locally")
    killable_redis.kill()
    found, errors = await granted(made, 200, which, Amounts())
    assert (len(found), {type(error) for error in errors}) == (30, {RateLimited})
    assert all(reservation.is_local for reservation in found)
    after = decisions("granted", "locally"), decisions("denied", "locally")
    assert [now - then for now, then in zip(after, before, strict=True)] == [30, 170]


async def test_share_of_a_budget_is_a_share_of_what_the_ledger_has_left(
    replicas: MakeReplicas, killable_redis: KillableRedis
) -> None:
    which = buckets(key=Limits(tokens_per_day=1000))
    ledger = FakeLedger(700)
    made = replicas(NUM_REPLICAS, ledger)
    await away(killable_redis, made[0])
    found, errors = await granted(made, 90, which, Amounts(1, 10))
    assert (len(found), {type(error) for error in errors}) == (30, {RateLimited})


async def test_budgets_are_refused_after_a_time_and_other_limits_go_on(
    replicas: MakeReplicas, killable_redis: KillableRedis
) -> None:
    (replica,) = replicas(1, budgets_without_redis_s=0.3)
    budget, limit = buckets(key=Limits(cost_per_day=1000)), buckets(key=Limits(requests_per_minute=30))
    await away(killable_redis, replica)
    await replica.reserve(TENANT, budget, Amounts(1, 0, 5))
    await asyncio.sleep(0.4)
    before = decisions("denied", "nowhere")
    with pytest.raises(LimitsUnavailable, match="budgets cannot be checked now") as refused:
        await replica.reserve(TENANT, budget, Amounts(1, 0, 5))
    assert (refused.value.http_status, decisions("denied", "nowhere") - before) == (503, 1)
    await replica.reserve(TENANT, limit, Amounts())


async def test_request_that_is_larger_than_a_share_may_come_back(
    replicas: MakeReplicas, killable_redis: KillableRedis
) -> None:
    (replica,) = replicas(1)
    await away(killable_redis, replica)
    with pytest.raises(LimitsUnavailable, match="one replica may not grant this request alone"):
        await replica.reserve(TENANT, buckets(key=Limits(tokens_per_minute=300)), Amounts(1, 200))
    with pytest.raises(LimitsUnavailable):
        await replica.reserve(TENANT, buckets(key=Limits(concurrent_requests=2)), Amounts())


async def test_what_was_used_while_redis_was_away_is_counted_when_it_is_back(
    replicas: MakeReplicas, killable_redis: KillableRedis
) -> None:
    which = buckets(key=Limits(concurrent_requests=90, tokens_per_day=9000))
    one, other = replicas(2, reservation_s=SHORT_S)
    before = await one.reserve(TENANT, which, Amounts(1, 100))
    killable_redis.kill()
    meanwhile, runs_on = [await one.reserve(TENANT, which, Amounts(1, 100)) for _ in range(2)]
    before.settle(Amounts(1, 10))
    meanwhile.settle(Amounts(1, 20))
    await asyncio.sleep(0.2)
    assert REGISTRY.get_sample_value("baton_limit_settlements_waiting") == 2
    killable_redis.start()
    await all_settled(one)
    await asyncio.sleep(SHORT_S)  # the request that runs on is renewed
    assert await left(other, which) == [88, 8870]
    runs_on.settle(Amounts(1, 30))
    await all_settled(one)
    assert await left(other, which) == [89, 8940]
    assert not (await one.reserve(TENANT, which, Amounts())).is_local


async def test_settlements_that_wait_are_bounded(
    replicas: MakeReplicas, killable_redis: KillableRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settlements, "MAX_WAITING", 5)
    monkeypatch.setattr(settlements, "AT_ONCE", 1)
    which = buckets(key=Limits(tokens_per_day=9000))
    (replica,) = replicas(1)
    found, _ = await granted([replica], 20, which, Amounts(1, 10))
    killable_redis.kill()
    lost = REGISTRY.get_sample_value("baton_limit_settlements_lost_total") or 0.0
    for reservation in found:
        reservation.settle(Amounts(1, 1))
    assert (REGISTRY.get_sample_value("baton_limit_settlements_lost_total") or 0.0) - lost == 15


async def test_settlements_of_one_tenant_do_not_lose_those_of_another(
    replicas: MakeReplicas, killable_redis: KillableRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settlements, "MAX_WAITING", 5)
    which = buckets(key=Limits(tokens_per_day=9000))
    (replica,) = replicas(1)
    quiet = await replica.reserve(TENANT, which, Amounts(1, 10))
    of_loud = buckets_of(Caller(tenant="loud", key_lineage="k"), "m", {ScopeKind.KEY: Limits(tokens_per_day=90)}, str)
    loud = [await replica.reserve("loud", of_loud, Amounts(1, 1)) for _ in range(20)]
    killable_redis.hold_up()
    quiet.settle(Amounts(1, 3))
    for reservation in loud:
        reservation.settle(Amounts(1, 1))
    killable_redis.let_go_on()
    await all_settled(replica)
    assert await left(replica, which) == [8997]


async def test_end_of_a_replica_waits_for_settlements_and_says_what_is_lost(
    replicas: MakeReplicas, killable_redis: KillableRedis, caplog: pytest.LogCaptureFixture
) -> None:
    which = buckets(key=Limits(tokens_per_day=1000))
    ending, losing = replicas(2)
    (await ending.reserve(TENANT, which, Amounts(1, 100))).settle(Amounts(1, 10))
    await ending.close(1.0)
    reservation = await losing.reserve(TENANT, which, Amounts(1, 100))
    assert reservation.rooms[0].remaining == 890
    killable_redis.kill()
    reservation.settle(Amounts(1, 10))
    await losing.close(0.1)
    assert "1 settlements of requests are lost" in caplog.text


async def test_request_without_limits_needs_no_redis(replicas: MakeReplicas, killable_redis: KillableRedis) -> None:
    (replica,) = replicas(1)
    killable_redis.kill()
    reservation = await replica.reserve(TENANT, (), Amounts(1, 10**9))
    assert (reservation.headers, reservation.is_local) == ({}, False)
    reservation.settle(Amounts(1, 5))
    await all_settled(replica)


async def test_request_that_never_fits_is_told_so(replicas: MakeReplicas) -> None:
    (replica,) = replicas(1)
    with pytest.raises(InvalidRequest, match="can never be admitted"):
        await replica.reserve(TENANT, buckets(key=Limits(tokens_per_minute=100)), Amounts(1, 101))


async def test_names_end_by_themselves(replicas: MakeReplicas, killable_redis: KillableRedis) -> None:
    full = Limits(requests_per_minute=9, tokens_per_minute=900, concurrent_requests=9, tokens_per_day=999)
    (replica,) = replicas(1)
    settled, _ = [await replica.reserve(TENANT, buckets(key=full, tenant=full), Amounts(1, 5)) for _ in range(2)]
    settled.settle(Amounts(1, 1))
    await all_settled(replica)
    with Redis.from_url(killable_redis.url) as client:
        names = list(client.scan_iter("*"))
        assert len(names) == 7  # two scopes, the open requests of each and of the tenant, and two reservations
        assert all(client.pttl(name) > 0 for name in names)
        assert all(f"{{{TENANT}}}".encode() in name for name in names)


async def test_limit_without_room_refuses_the_next_request_before_it_asks_redis(replicas: MakeReplicas) -> None:
    (one, other) = replicas(2)
    which = buckets(key=Limits(requests_per_minute=1))
    one.look(which)
    await one.reserve(TENANT, which, Amounts(1, 10))
    one.look(which)
    with pytest.raises(RateLimited):
        await one.reserve(TENANT, which, Amounts(1, 10))
    with pytest.raises(RateLimited):
        one.look(which)
    other.look(which)

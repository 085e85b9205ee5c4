"""reserve.lua on a real Redis does what the model does, for any sequence of calls."""

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis

from api.identity.caller import Caller
from api.limits import budget, end_users
from api.limits.budget import KEPT_MS, SWEPT_AT_ONCE, BudgetModel, Denied, Entry, Granted, Unseeded
from api.limits.counters import DAY_MS
from api.limits.end_users import MOST_END_USERS
from api.limits.limits import Amounts, Bucket, ScopeKind, buckets_of
from api.limits.script import ReservationScript, Unanswered, script_text
from api.state.redis.client import RedisCall, RedisClient, RedisScript
from cluster.config.tenants.limits import MOST_BUDGET, MOST_PER_MINUTE, Limits
from tests.unit.api.limits.a_request import TENANT, buckets

START_MS = 1_772_000_000_000
LIFETIME_MS = 60_000
CLOCK = "clock"
TIME = "redis.call('TIME')"

SMALL = Limits(
    requests_per_minute=3,
    tokens_per_minute=100,
    concurrent_requests=2,
    tokens_per_day=300,
    tokens_per_month=500,
    cost_per_day=300,
    cost_per_month=500,
)
LARGE = Limits(requests_per_minute=7, tokens_per_minute=1000, concurrent_requests=50, cost_per_month=2000)
HUGE = Limits(tokens_per_minute=MOST_PER_MINUTE, tokens_per_month=MOST_BUDGET, cost_per_day=MOST_BUDGET)
SETS = [
    buckets(key=SMALL),
    buckets(key=LARGE, tenant=SMALL),
    buckets(key=LARGE, project=LARGE, tenant=LARGE, end_user=SMALL, model=HUGE),
    buckets(key=HUGE, end_user=Limits(concurrent_requests=3)),
    buckets(key=Limits(tokens_per_minute=333, requests_per_minute=11)),
]
AMOUNTS = st.builds(
    Amounts,
    st.integers(0, 2),
    st.one_of(st.integers(0, 120), st.sampled_from([0, 10**9, 10**10])),
    st.one_of(st.integers(0, 120), st.just(10**12)),
)
LAGS_MS = [0, 0, 500, 5_000, 20_000, KEPT_MS, KEPT_MS + 1]
"""How long ago a request has ended that is settled."""
PAUSES = st.sampled_from([0, 0, 1, 333, 5_000, 30_000, 59_999, 61_000, 3_600_000, DAY_MS, 31 * DAY_MS])
CALLS = st.one_of(
    st.tuples(st.just("reserve"), st.sampled_from(SETS), AMOUNTS),
    st.tuples(st.just("reserve"), st.sampled_from(SETS), AMOUNTS),
    st.tuples(st.just("settle"), st.integers(0, 7), st.tuples(AMOUNTS, st.sampled_from(LAGS_MS))),
    st.tuples(st.just("settle again"), st.integers(0, 7), st.none()),
    st.tuples(st.just("renew"), st.integers(0, 7), st.none()),
    st.tuples(st.just("reserve again"), st.integers(0, 7), st.none()),
    st.tuples(st.just("reserve late"), st.sampled_from(SETS), AMOUNTS),
    st.tuples(st.just("restart"), st.none(), st.none()),
)
BUSY_SETS = [
    buckets(key=Limits(tokens_per_minute=1000, requests_per_minute=100), tenant=Limits(tokens_per_minute=1300)),
    buckets(key=Limits(tokens_per_minute=1000, tokens_per_day=10**6), tenant=Limits(concurrent_requests=20)),
]
"""Limits per minute that have room for many requests at once, so that they have many low points."""


class _OnClock(RedisClient):
    """Runs scripts in the test's own Redis, on a clock of the test."""

    def __init__(self, redis: Redis) -> None:
        super().__init__()
        self._sync = redis

    def begun(self, script: RedisScript, keys: list[str], *arguments: str | int) -> RedisCall:
        call = RedisCall(())
        call.answers.set_result([self._sync.eval(script.text, len(keys), *keys, *map(str, arguments))])
        return call


class Both:
    """The script and the model, side by side."""

    def __init__(self, redis: Redis, has_ledger: bool, most_end_users: int = MOST_END_USERS) -> None:
        assert TIME in script_text()
        self.redis = redis
        self.script = ReservationScript(
            _OnClock(redis), script_text().replace(TIME, f"redis.call('LRANGE', '{CLOCK}', 0, 1)")
        )
        self.now_ms = START_MS
        self.has_ledger = has_ledger
        self.most_end_users = most_end_users
        self.open: list[Entry] = []
        self.closed: list[tuple[Entry, Amounts, int]] = []
        self.forget()

    def forget(self) -> None:
        self.redis.flushdb()
        self.model = BudgetModel(self.most_end_users)
        self.closed = []
        self.advance(0)

    def advance(self, pause_ms: int) -> None:
        self.now_ms += pause_ms
        self.redis.delete(CLOCK)
        self.redis.rpush(CLOCK, self.now_ms // 1000, self.now_ms % 1000 * 1000 + 999)

    async def reserve(self, entry: Entry) -> Granted | Denied:
        seeds: dict[int, int] | None = {} if self.has_ledger else None
        while True:
            found = await self.script.reserve(TENANT, entry, LIFETIME_MS, seeds)
            assert found == self.model.reserve(entry, LIFETIME_MS, self.now_ms, seeds)
            assert not isinstance(found, Unanswered)
            if not isinstance(found, Unseeded):
                return found
            assert seeds is not None
            seeds |= {index: 17 * index for index in found.buckets}

    async def settle(self, entry: Entry, actual: Amounts, closed_at_ms: int) -> None:
        found = await self.script.settled(self.script.begin_settling(TENANT, entry, actual, closed_at_ms))
        assert found == self.model.settle(entry, actual, closed_at_ms, self.now_ms)

    async def renew(self, entry: Entry) -> None:
        await self.script.renew(TENANT, entry, LIFETIME_MS)
        self.model.renew(entry, LIFETIME_MS, self.now_ms)

    async def call(self, number: int, pause_ms: int, call: tuple[str, Any, Any]) -> None:
        self.advance(pause_ms)
        match call:
            case ("reserve", which, asked):
                entry = Entry(f"r{number}", self.now_ms, which, asked)
                if isinstance(found := await self.reserve(entry), Granted):
                    self.open.append(entry._replace(taken_at_ms=found.now_ms))
            case ("reserve again", index, _) if self.open:
                await self.reserve(self.open[index % len(self.open)])
            case ("reserve late", which, asked):
                entry = Entry(f"r{number}", self.now_ms, which, asked)
                await self.settle(entry, Amounts(0), self.now_ms)
                assert isinstance(await self.reserve(entry), Denied)
            case ("settle", index, (actual, lag_ms)) if self.open:
                entry = self.open.pop(index % len(self.open))
                closed_at_ms = self.now_ms - lag_ms
                self.closed.append((entry, actual, closed_at_ms))
                await self.settle(entry, actual, closed_at_ms)
            case ("settle again", index, _) if self.closed:
                await self.settle(*self.closed[index % len(self.closed)])
            case ("renew", index, _) if self.open:
                await self.renew(self.open[index % len(self.open)])
            case ("restart", _, _):
                self.forget()

    async def compare(self) -> None:
        """Every bucket has the same room."""
        for number, which in enumerate(SETS):
            await self.reserve(Entry(f"probe{number}", self.now_ms, which, Amounts(0)))


@pytest.fixture(scope="module")
def own_redis(redis: str) -> Iterator[Redis]:
    with Redis.from_url(f"{redis}?db=7") as client:
        yield client
        client.flushdb()


async def test_lost_reservation_with_a_limit_of_another_version_is_given_back(own_redis: Redis) -> None:
    """During a rolling update, replicas of both versions count in one Redis."""
    both = Both(own_redis, has_ledger=False)
    which = buckets(key=Limits(tokens_per_day=100))
    await both.reserve(Entry("lost", both.now_ms, which, Amounts(1, 90)))
    name = f"baton:limits:{{{TENANT}}}:open:lost"
    own_redis.append(name, f"|{which[0].name} yy 5")
    both.advance(LIFETIME_MS)
    answer = await both.reserve(Entry("next", both.now_ms, which, Amounts(1, 10)))
    assert [room.remaining for room in answer.rooms] == [90]


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(PAUSES, CALLS), max_size=40), st.booleans())
def test_script_and_model_agree(
    own_redis: Redis, calls: list[tuple[int, tuple[str, Any, Any]]], has_ledger: bool
) -> None:
    async def run() -> None:
        both = Both(own_redis, has_ledger)
        for number, (pause_ms, call) in enumerate(calls):
            await both.call(number, pause_ms, call)
        await both.compare()

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(12))
def test_they_agree_on_many_requests_that_are_open_at_once(own_redis: Redis, seed: int) -> None:
    async def run() -> None:
        chance = random.Random(seed)
        both = Both(own_redis, seed % 2 == 1)
        for number in range(400):
            pause_ms = chance.choice([0, 0, 1, 40, 300, 2000, 2000, 15_000])
            asked, actual = Amounts(1, chance.randrange(1, 120)), Amounts(1, chance.randrange(120))
            calls: list[tuple[str, Any, Any]] = [
                ("reserve", chance.choice(BUSY_SETS), asked),
                ("settle", chance.randrange(20), (actual, chance.choice(LAGS_MS))),
                ("settle again", chance.randrange(20), None),
                ("renew", chance.randrange(20), None),
                ("restart", None, None),
            ]
            await both.call(number, pause_ms, chance.choices(calls, [60, 36, 3, 15, 2])[0])
        await both.compare()

    asyncio.run(run())


def of_user(user: int, **limits: Limits) -> tuple[Bucket, ...]:
    caller = Caller(tenant=TENANT, key="key_1", key_lineage="key_1", end_user=f"u{user}")
    return buckets_of(caller, "m", {ScopeKind(name): found for name, found in limits.items()}, str)


@pytest.mark.parametrize("seed", range(6))
def test_they_agree_on_end_users_beyond_the_most(own_redis: Redis, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(end_users, "MOST_END_USERS", 3)

    async def run() -> None:
        chance = random.Random(seed)
        both = Both(own_redis, False, 3)
        own = Limits(requests_per_minute=4, tokens_per_minute=300, concurrent_requests=4)
        for number in range(200):
            calls: list[tuple[str, Any, Any]] = [
                (
                    "reserve",
                    of_user(chance.randrange(6), key=LARGE, end_user=own),
                    Amounts(1, chance.randrange(1, 120)),
                ),
                ("settle", chance.randrange(20), (Amounts(1, chance.randrange(120)), chance.choice(LAGS_MS))),
                ("renew", chance.randrange(20), None),
            ]
            pause_ms = chance.choice([0, 0, 300, 2000, 15_000, 130_000])
            await both.call(number, pause_ms, chance.choices(calls, [6, 4, 1])[0])
        await both.compare()
        named = own_redis.keys("*:end_user:*")
        assert isinstance(named, list) and own_redis.exists(f"baton:limits:{{{TENANT}}}:other_end_users")

    asyncio.run(run())


def test_limits_that_are_known_refuse_before_the_ledger_is_asked(own_redis: Redis) -> None:
    async def run() -> None:
        both = Both(own_redis, True)
        which = buckets(key=Limits(requests_per_minute=1), tenant=Limits(tokens_per_month=1000))
        script, model = both.script, both.model
        first, second = (Entry(f"r{number}", START_MS, which, Amounts(1, 10)) for number in range(2))
        assert isinstance(await script.reserve(TENANT, first, LIFETIME_MS, {}), Unseeded)
        assert isinstance(model.reserve(first, LIFETIME_MS, both.now_ms, {}), Unseeded)
        await both.reserve(first._replace(buckets=which[:1]))
        assert isinstance(await script.reserve(TENANT, second, LIFETIME_MS, {}), Denied)
        assert isinstance(model.reserve(second, LIFETIME_MS, both.now_ms, {}), Denied)

    asyncio.run(run())


def test_settlements_that_are_remembered_are_bounded(own_redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MOST_SETTLED", 5)

    async def run() -> None:
        both = Both(own_redis, False)
        entries = [Entry(f"r{number}", START_MS, SETS[0], Amounts(1, 1)) for number in range(20)]
        for entry in entries:
            both.advance(1)
            await both.settle(entry, Amounts(0), both.now_ms)
        assert own_redis.zcard(f"baton:limits:{{{TENANT}}}:settled") == 5
        for entry in reversed(entries):
            await both.settle(entry, Amounts(0), both.now_ms)

    asyncio.run(run())


def test_lost_requests_take_no_place_though_another_one_goes_on(own_redis: Redis) -> None:
    """More are lost than one call gives back, and the one that goes on keeps the names of the others in Redis."""

    async def run() -> None:
        both = Both(own_redis, False)
        which = buckets(key=Limits(concurrent_requests=100))
        entries = [Entry(f"r{number}", START_MS, which, Amounts()) for number in range(SWEPT_AT_ONCE + 11)]
        for entry in entries:
            await both.reserve(entry)
        both.advance(LIFETIME_MS - 1)
        await both.renew(entries[0])
        both.advance(1)
        found = await both.reserve(Entry("probe", both.now_ms, which, Amounts()))
        assert found.rooms[0].remaining == 98

    asyncio.run(run())

"""A request that is sent twice is answered once, however the two of them and PostgreSQL run."""

import asyncio
import hashlib
from itertools import count
from typing import Any
from uuid import uuid4

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from api.identity.tenants import tenant_of_key
from api.responses import idempotency
from api.responses.idempotency import Attempt, found_for
from api.state.event_streams.response_events import Standing
from api.state.lifecycle import ChatState
from api.state.redis.client import RedisClient
from api.state.redis.idempotency_keys import Hold, IdempotencyKeys
from api.wire.fingerprint import fingerprint
from cluster.errors import StillAdmitting
from tests.expected import present
from tests.hostile.state.conftest import TalkativeModel

BODY = {"model": "m", "input": "pay once"}


@pytest.fixture
def slow(state: ChatState, monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """Admissions take until they may go on."""
    store, may_go_on, begun = state.stores.responses, asyncio.Event(), asyncio.Event()
    admit = store.admit

    async def slowly(*admission: Any) -> Any:
        begun.set()
        await may_go_on.wait()
        return await admit(*admission)

    monkeypatch.setattr(store, "admit", slowly)
    return begun, may_go_on


KEYED, RETRIED = {"idempotency-key": "k"}, {"x-stainless-retry-count": "1"}


@pytest.mark.parametrize(("first", "second"), [(KEYED, KEYED), ({}, RETRIED)])
async def test_second_try_waits_for_the_admission_of_the_first(
    http: httpx.AsyncClient,
    model: TalkativeModel,
    slow: tuple[asyncio.Event, asyncio.Event],
    first: dict[str, Any],
    second: dict[str, str],
) -> None:
    begun, may_go_on = slow
    one = asyncio.create_task(http.post("/v1/responses", json=BODY, headers=first))
    await begun.wait()
    other = asyncio.create_task(http.post("/v1/responses", json=BODY, headers=second))
    await asyncio.sleep(0.2)
    may_go_on.set()
    answers = [await one, await other]
    assert len({answer.json()["id"] for answer in answers}) == 1 and len(model.bodies) == 1


async def test_who_would_wait_too_long_is_told_when_to_come_back(
    http: httpx.AsyncClient,
    model: TalkativeModel,
    slow: tuple[asyncio.Event, asyncio.Event],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(idempotency, "WAIT_S", 0.1)
    begun, may_go_on = slow
    one = asyncio.create_task(http.post("/v1/responses", json=BODY, headers=KEYED))
    await begun.wait()
    refused = await http.post("/v1/responses", json=BODY, headers=KEYED)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "request_in_progress")
    assert int(refused.headers["retry-after"]) >= 1
    may_go_on.set()
    await one
    again = await http.post("/v1/responses", json=BODY, headers=KEYED)
    assert again.json()["id"] == one.result().json()["id"] and len(model.bodies) == 1


async def test_client_that_leaves_while_it_is_admitted_finds_its_response_when_it_comes_back(
    http: httpx.AsyncClient, model: TalkativeModel, slow: tuple[asyncio.Event, asyncio.Event]
) -> None:
    begun, may_go_on = slow
    one = asyncio.create_task(http.post("/v1/responses", json=BODY))
    await begun.wait()
    one.cancel()
    other = asyncio.create_task(http.post("/v1/responses", json=BODY, headers=RETRIED))
    await asyncio.sleep(0.1)
    may_go_on.set()
    assert (await other).status_code == 200 and len(model.bodies) == 1


async def test_names_in_redis_do_not_tell_what_was_asked(http: httpx.AsyncClient, redis: str) -> None:
    """Nobody who reads them can try whether a request was this one."""
    mark = fingerprint(tenant_of_key("sk-alice"), "/v1/responses", BODY)
    with Redis.from_url(redis) as client:
        client.flushall()
        await http.post("/v1/responses", json=BODY)
        (name,) = client.scan_iter("baton:request:*")
    for guess in (mark, f"request {mark}"):
        assert hashlib.sha256(guess.encode()).hexdigest() not in name.decode()


class Stores:
    """What PostgreSQL has."""

    def __init__(self) -> None:
        self.there: set[str] = set()
        self.response_events = self

    async def standing(self, tenant: str, response: str) -> Standing | None:
        return Standing("in_progress", 0, True, 0.0) if response in self.there else None


class Replica:
    def __init__(self, url: str, stores: Stores) -> None:
        self.volatile = RedisClient()
        self.volatile.reach(url)
        self.idempotency_keys, self.stores = IdempotencyKeys(self.volatile, str), stores


steps = st.lists(
    st.one_of(
        st.tuples(st.just("try"), st.integers(0, 1)),
        st.tuples(st.sampled_from(["admit", "refuse", "die", "delete"]), st.integers(0, 5)),
    ),
    max_size=12,
)


@given(steps)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_at_most_one_try_is_answered_anew(redis: str, steps: list[tuple[str, int]]) -> None:
    before = idempotency.WAIT_S, idempotency.LOOK_INTERVAL_S
    idempotency.WAIT_S, idempotency.LOOK_INTERVAL_S = 0.0, 0.001
    try:
        asyncio.run(tried(redis, steps))
    finally:
        idempotency.WAIT_S, idempotency.LOOK_INTERVAL_S = before


async def tried(url: str, steps: list[tuple[str, int]]) -> None:
    stores, tenant, numbers = Stores(), uuid4().hex, count()
    replicas = [Replica(url, stores) for _ in range(2)]
    holding: dict[str, Hold] = {}
    for step, which in steps:
        if step == "try":
            new = f"resp_{next(numbers)}"
            try:
                replica: Any = replicas[which]  # a fake of the services that a try uses
                found = await found_for(replica, tenant, Attempt("s", "f", "k", False), new)
            except StillAdmitting:
                assert holding
                continue
            if found.hold is None:
                assert found.response in stores.there
            else:
                assert not holding and not stores.there
                holding[new] = found.hold
        elif step == "delete":
            stores.there.clear()
        elif holding:
            response, hold = holding.popitem()
            if step == "die":
                present(hold._renewal).cancel()
                hold._keys._own.clear()
                await hold._keys._redis.run(("DEL", hold._key))  # as when the claim has run out
                continue
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if step == "admit":
                stores.there.add(response)
                ended.set_result(None)
            else:
                ended.set_exception(ValueError())
            hold.settle(ended)
            for replica in replicas:
                await replica.idempotency_keys.settled()
    for hold in holding.values():
        hold.refuse()
    for replica in replicas:
        await replica.idempotency_keys.settled()
        await replica.volatile.close()

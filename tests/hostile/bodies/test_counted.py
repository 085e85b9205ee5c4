"""Requests count by their cost: sequences against the capacity of the replica, bodies against its memory for bodies."""

import asyncio
from typing import Any

import pytest

from api.edge.byte_budget import FREE_BYTES, ByteBudget, Share
from api.edge.capacity import Capacity, Standstill
from api.edge.request_body import Body
from api.frontend.generation import Call
from cluster.errors import Overloaded
from tests.component.app_with_fakes import CHAT, COMPLETION, FakeFrontend, a_client, an_app
from tests.expected import present
from tests.hostile.http.wire import listening, post


class Waiting(FakeFrontend):
    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def chat_completion(self, body: Any, call: Call) -> Any:
        self.asked.set()
        await self.may_answer.wait()
        return await super().chat_completion(body, call)

    completion = chat_completion


@pytest.mark.parametrize(
    ("path", "body"),
    [(CHAT, {"n": 8}), (COMPLETION, {"prompt": ["a"] * 4, "n": 2}), (COMPLETION, {"prompt": ["a"] * 8})],
)
async def test_request_with_several_sequences_takes_the_room_of_all(path: str, body: dict[str, Any]) -> None:
    frontend = Waiting()
    async with a_client(an_app(frontend, max_ongoing_requests=8, max_sequences_per_request=8)) as client:
        wide = asyncio.create_task(client.post(path, json=body))
        await frontend.asked.wait()
        refused = await client.post(CHAT, json={})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_overloaded")
        assert int(refused.headers["retry-after"]) >= 1
        frontend.may_answer.set()
        assert (await wide).status_code == 200
        assert (await client.post(CHAT, json={})).status_code == 200


async def test_request_that_needs_more_room_than_is_free_takes_none() -> None:
    frontend = Waiting()
    async with a_client(an_app(frontend, max_ongoing_requests=8)) as client:
        first = asyncio.create_task(client.post(CHAT, json={}))
        await frontend.asked.wait()
        assert (await client.post(CHAT, json={"n": 8})).status_code == 503
        second = asyncio.create_task(client.post(CHAT, json={"n": 7}))
        frontend.may_answer.set()
        assert [(await one).status_code for one in (first, second)] == [200, 200]


async def test_more_prompts_than_a_request_may_have_are_told_how_many() -> None:
    async with a_client(an_app(FakeFrontend())) as client:
        answer = await client.post(COMPLETION, json={"prompt": ["a"] * 1024})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], error["code"]) == (400, "prompt", "array_above_max_length")
        assert "128" in error["message"]


async def test_bodies_together_take_no_more_memory_than_they_may() -> None:
    large = b'{"a":"' + b"x" * 900_000 + b'"}'
    options = {"max_body_bytes": 1 << 20, "max_bodies_bytes": 1 << 20, "max_ongoing_requests": 4}
    async with listening(**options) as wire:
        wire.app.may_answer.clear()
        first = await wire.connection()
        await first.send(large_post := post(large))
        async with asyncio.timeout(5):
            while not wire.app.num_asked:  # noqa: ASYNC110  # until the kernel has delivered the request
                await asyncio.sleep(0)
        refused = await wire.asked(large_post)
        assert (refused.status, refused.code) == (503, "engine_overloaded")
        assert "retry-after" in refused.headers
        small = await wire.connection()
        await small.send(post(b"{}"))
        wire.app.may_answer.set()
        assert (await first.answer()).status == 200
        assert (await small.answer()).status == 200  # a body of ordinary length is admitted
        assert (await wire.asked(large_post)).status == 200


async def test_sender_that_stops_holds_what_it_has_sent_and_no_more() -> None:
    options = {"max_body_bytes": 1 << 20, "max_bodies_bytes": 1 << 20}
    async with listening(**options) as wire:
        for _ in range(8):
            await (await wire.connection()).send(post(b"x" * 1000, length=1 << 20))
        assert (await wire.asked(post(b"x" * 900_000))).status == 200


@pytest.mark.parametrize(
    "body",
    [b'{"messages":[' + b"[]," * 30_000 + b"[]]}", b'{"messages":[' + b"1," * 40_000 + b"1]}"],
    ids=["lists", "numbers"],
)
async def test_values_of_a_body_take_the_memory_that_is_made_of_them(body: bytes) -> None:
    """Two bytes of text become an object of sixty bytes."""
    assert len(body) < 2 * FREE_BYTES
    few = {"messages": "x" * len(body)}
    async with a_client(an_app(FakeFrontend(), max_body_bytes=1 << 20, max_bodies_bytes=1 << 20)) as client:
        assert (await client.post(CHAT, json=few)).status_code == 200
        for _ in range(2):
            refused = await client.post(CHAT, content=body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_overloaded")
    async with a_client(an_app(FakeFrontend(), max_body_bytes=1 << 20, max_bodies_bytes=8 << 20)) as client:
        for _ in range(10):  # each request gives its memory back
            assert (await client.post(CHAT, content=body)).status_code == 400


def test_share_gives_back_all_that_it_took() -> None:
    budget = ByteBudget(1000)
    one, other = Share(budget), Share(budget)
    one.add(FREE_BYTES)
    assert budget.num_held == 0
    one.add(600)
    with pytest.raises(Overloaded):
        other.add(FREE_BYTES + 401)
    other.add(FREE_BYTES + 400)
    assert budget.num_held == 1000
    for share in (one, one, other):
        share.release()
    assert budget.num_held == 0


def test_bodies_that_share_have_free_bytes_once() -> None:
    budget = ByteBudget(1000)
    share = Share(budget)
    one, other = Body(share), Body(share)
    one.add(FREE_BYTES)
    other.add(600)
    with pytest.raises(Overloaded):
        one.add(401)
    assert budget.num_held == 600
    for body in (other, other):
        body.release()
    one.add(500)  # what it has counts still
    assert budget.num_held == 500
    one.release()
    assert budget.num_held == 0


def test_one_tenant_has_its_part() -> None:
    capacity = Capacity(4, most_per_tenant=2)
    held = [present(capacity.acquire(tenant="a")) for _ in range(2)]
    assert capacity.acquire(tenant="a") is None
    assert capacity.acquire(3, tenant="b") is None
    shared = capacity.acquire(2, tenant="b")
    assert shared is not None
    assert capacity.is_full
    held[0].release()
    assert capacity.acquire(tenant="a") is not None
    shared.share()
    shared.release()
    assert capacity.of_tenant("b") == 2
    shared.release()
    assert capacity.of_tenant("b") == 0


def test_replica_stands_still_while_it_is_full_and_nothing_ends() -> None:
    capacity = Capacity(2)
    standstill = Standstill(capacity)
    one, two = present(capacity.acquire()), present(capacity.acquire())
    assert standstill.lasts_s(10.0) == 0.0
    assert standstill.lasts_s(15.0) == 5.0
    one.release()
    assert standstill.lasts_s(16.0) == 0.0
    three = present(capacity.acquire())
    assert standstill.lasts_s(17.0) == 0.0
    assert standstill.lasts_s(27.0) == 10.0
    for units in (two, three):
        units.release()
    assert capacity.num_held == 0


def test_replica_whose_requests_end_between_two_looks_does_not_stand_still() -> None:
    """The replica is full at each reading, but of new requests."""
    capacity = Capacity(1)
    standstill = Standstill(capacity)
    held = present(capacity.acquire())
    for now in (10.0, 20.0, 30.0):
        assert standstill.lasts_s(now) == 0.0
        held.release()
        held = present(capacity.acquire())
    assert standstill.lasts_s(40.0) == 0.0
    assert standstill.lasts_s(41.0) == 1.0

"""Who waits at the Scheduler's desk: real event loop, one decode worker that has too much to do."""

import asyncio

import pytest

from cluster.reports import EngineShape, WorkerLoad, WorkerReport
from cluster.types import (
    Address,
    Placement,
    PlacementRequest,
    Pool,
    Rejection,
    RequestClosed,
    RequestId,
    SloClass,
    WorkerId,
)
from router.desk import PlacementDesk
from router.state import RouterState

PROMPT = 32_000
ANSWERED_WITHIN_S = 5.0
REPORT = WorkerReport(
    worker=WorkerId("d0"),
    pool=Pool.DECODE,
    address=Address("d0", 1, "secret"),
    load=WorkerLoad(),
    max_requests=100,
    shape=EngineShape(kind="qwen3-32b|h100|tp2", kv_capacity_tokens=1_000_000),
)


@pytest.fixture
async def desk():
    """Of a worker with prompts for some tens of seconds."""
    desk = PlacementDesk(RouterState())
    desk.report(REPORT)
    for number in range(10):
        assert isinstance(await desk.place(ask(f"before{number}", PROMPT, path="D")), Placement)
    return desk


def ask(request_id, num_prompt, **fields):
    return PlacementRequest(request_id=RequestId(request_id), num_prompt_tokens=num_prompt, **fields)


async def waiting(desk, request_id, asker=None, **fields):
    asked = asyncio.create_task(desk.place(ask(request_id, PROMPT, **fields), asker))
    await asyncio.sleep(0)
    assert not asked.done()
    return asked


def end_those_before(desk):
    for number in range(10):
        desk.tell(RequestClosed(request_id=RequestId(f"before{number}")))


async def test_request_that_waits_is_placed_when_others_have_ended(desk):
    asked = await waiting(desk, "r")
    end_those_before(desk)
    async with asyncio.timeout(ANSWERED_WITHIN_S):
        assert isinstance(await asked, Placement)
    assert desk.state.num_waiting == 0


async def test_client_that_leaves_frees_its_place_in_the_queue(desk):
    asked = await waiting(desk, "r")
    other = await waiting(desk, "other")
    asked.cancel()
    desk.tell(RequestClosed(request_id=RequestId("r")))  # its session says so
    assert [queued.request_id for queued in desk.state.queued(now())] == ["other"]
    end_those_before(desk)
    async with asyncio.timeout(ANSWERED_WITHIN_S):
        assert isinstance(await other, Placement)
    assert asked.cancelled()
    assert [worker.num_placed for worker in desk.state.view(now()).workers] == [1]


async def test_ingress_that_dies_frees_the_places_of_its_requests(desk):
    dead, alive = object(), object()
    asked = [await waiting(desk, f"r{number}", dead) for number in range(3)]
    other = await waiting(desk, "other", alive)
    for task in asked:
        task.cancel()  # as the channel does with the calls of a lost connection
    desk.asker_gone(dead)
    assert desk.state.num_waiting == 1
    end_those_before(desk)
    async with asyncio.timeout(ANSWERED_WITHIN_S):
        assert isinstance(await other, Placement)
    assert [worker.num_placed for worker in desk.state.view(now()).workers] == [1]


async def test_request_that_asks_again_waits_once(desk):
    first = await waiting(desk, "r")
    again = await waiting(desk, "r")
    assert desk.state.num_waiting == 1
    end_those_before(desk)
    async with asyncio.timeout(ANSWERED_WITHIN_S):
        assert isinstance(await again, Placement)
    first.cancel()
    assert [worker.num_placed for worker in desk.state.view(now()).workers] == [1]


async def test_request_that_cannot_make_it_any_more_is_refused_though_nothing_happens(desk):
    async with asyncio.timeout(ANSWERED_WITHIN_S):
        answer = await desk.place(ask("r", 100, ttft_s=0.1))
    assert isinstance(answer, Rejection)
    assert answer.is_overload
    assert desk.state.num_waiting == 0


async def test_queue_is_shown_in_the_order_in_which_it_is_served(desk):
    late = await waiting(desk, "late", slo_class=SloClass.STANDARD)
    soon = await waiting(desk, "soon", slo_class=SloClass.STANDARD, ttft_s=6.0)
    first, second = desk.state.queued(now())
    assert [(queued.request_id, queued.num_before) for queued in (first, second)] == [("soon", 0), ("late", 1)]
    assert first.wait_s > 0 and second.wait_s > 0
    assert 0 < first.gives_up_s < second.gives_up_s
    for task in (late, soon):
        task.cancel()


def now():
    return asyncio.get_running_loop().time()

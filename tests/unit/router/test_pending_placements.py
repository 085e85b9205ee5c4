"""Each request that waits gets exactly one answer, on a virtual clock."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from cluster.messages.ids import IngressId, Path, RequestId
from cluster.messages.placement import Placement, Rejection
from cluster.messages.scheduler_events import FirstToken, RequestClosed
from cluster.simulation.clock import VirtualLoop
from router.admission.waiting_queue import MOST_LOOK_S
from router.pending_placements import DECIDE_INTERVAL_S, PendingPlacements
from tests.unit.clusters import a_cluster, a_report, ask


class CountedPlacements(PendingPlacements):
    def __init__(self) -> None:
        super().__init__(a_cluster(1, 1))
        self.num_decided = 0

    def _decide(self) -> None:
        self.num_decided += 1
        super()._decide()

    async def fill(self) -> None:
        """Both workers are busy for half a minute."""
        for number in range(10):
            for path in (Path.DECODE, Path.PREFILL_DECODE):
                assert isinstance(await self.place(ask(f"queued{number}{path}", 32_000, path=path)), Placement)

    def empty(self) -> None:
        for number in range(10):
            for path in (Path.DECODE, Path.PREFILL_DECODE):
                self.tell(RequestClosed(request_id=RequestId(f"queued{number}{path}")))

    def start(
        self, request_id: str, ingress: IngressId | None = None, **fields: Any
    ) -> "asyncio.Task[Placement | Rejection]":
        return asyncio.get_running_loop().create_task(self.place(ask(request_id, 2000, **fields), ingress))


def on_virtual_loop(test: Coroutine[Any, Any, None]) -> None:
    VirtualLoop().run(test)


async def pause(seconds: float = 0.001) -> None:
    await asyncio.sleep(seconds)


def test_who_waits_is_answered_when_there_is_room() -> None:
    async def run() -> None:
        pending = CountedPlacements()
        await pending.fill()
        one = pending.start("one")
        await pause()
        assert not one.done()
        pending.empty()
        await pause(MOST_LOOK_S + 2 * DECIDE_INTERVAL_S)
        assert isinstance(one.result(), Placement)
        pending.state.validate()

    on_virtual_loop(run())


def test_who_waits_is_refused_at_its_deadline_without_any_event() -> None:
    async def run() -> None:
        pending = CountedPlacements()
        await pending.fill()
        answer = await pending.start("one")
        assert isinstance(answer, Rejection)
        assert answer.is_overload
        assert answer.retry_after_s >= 1.0
        assert asyncio.get_running_loop().time() == pytest.approx(1.2, abs=0.2)  # TTFT less the prefill
        assert pending.num_decided <= 60  # a look costs little, and queues drain without a word

    on_virtual_loop(run())


def test_hundreds_that_wait_are_looked_at_no_more_often() -> None:
    async def run() -> None:
        pending = CountedPlacements()
        await pending.fill()
        several = [pending.start(f"r{number}") for number in range(300)]
        for tick in range(500):
            pending.tell(FirstToken(request_id=RequestId(f"unknown{tick}")))
            await pause(0.001)
        pending.report(a_report("p0"))
        answers = await asyncio.gather(*several)
        assert all(isinstance(answer, Rejection) for answer in answers)
        assert pending.num_decided <= asyncio.get_running_loop().time() / DECIDE_INTERVAL_S + 2

    on_virtual_loop(run())


def test_idle_scheduler_sets_no_timer() -> None:
    async def run() -> None:
        pending = CountedPlacements()
        await pending.place(ask("r", 2000))
        pending.tell(RequestClosed(request_id=RequestId("r")))
        pending.report(a_report("p0"))
        await pause(100.0)
        assert pending.num_decided == 0

    on_virtual_loop(run())


def test_client_that_leaves_while_it_waits_frees_its_place() -> None:
    async def run() -> None:
        pending = CountedPlacements()
        await pending.fill()
        one, other = pending.start("one"), pending.start("other")
        await pause()
        one.cancel()
        pending.tell(RequestClosed(request_id=RequestId("one")))
        await pause()
        assert one.cancelled()
        assert pending.state.num_waiting == 1
        pending.empty()
        assert isinstance(await other, Placement)
        pending.state.validate()

    on_virtual_loop(run())


def test_request_that_asks_again_while_it_waits_is_answered_once() -> None:
    async def run() -> None:
        pending = CountedPlacements()
        await pending.fill()
        first = pending.start("one")
        await pause()
        again = pending.start("one")
        await pause()
        assert first.cancelled()
        pending.empty()
        assert isinstance(await again, Placement)
        assert pending.state.num_waiting == 0
        pending.state.validate()

    on_virtual_loop(run())


def test_nobody_waits_for_an_ingress_that_is_gone() -> None:
    async def run() -> None:
        pending, ingress = CountedPlacements(), IngressId("one")
        await pending.fill()
        gone, stays = pending.start("one", ingress), pending.start("two", IngressId("two"))
        await pause()
        pending.ingress_gone(ingress)
        await pause()
        assert gone.cancelled()
        assert not stays.done()
        stays.cancel()

    on_virtual_loop(run())

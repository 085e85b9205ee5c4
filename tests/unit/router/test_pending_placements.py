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
from router.pending_placements import DECIDE_INTERVAL_S, MOST_IN_TURNS, MOST_PER_TURN, PendingPlacements
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
        assert pending.num_decided <= asyncio.get_running_loop().time() / DECIDE_INTERVAL_S + 300 / MOST_PER_TURN + 2

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


GREEDY, MODEST = IngressId("greedy"), IngressId("modest")


def is_answered(answer: Any) -> bool:
    return not isinstance(answer, asyncio.Future) or answer.done()


async def turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


def test_turn_of_the_event_loop_considers_a_few_requests_and_the_next_one_as_many() -> None:
    async def run() -> None:
        pending = CountedPlacements()
        several = [pending.ask(ask(f"r{number}", 100), GREEDY) for number in range(3 * MOST_PER_TURN)]
        assert sum(map(is_answered, several)) == MOST_PER_TURN
        await turns(1)
        assert sum(map(is_answered, several)) == 2 * MOST_PER_TURN
        await turns(2)
        assert all(map(is_answered, several))
        again = [pending.ask(ask(f"s{number}", 100), GREEDY) for number in range(MOST_PER_TURN)]
        assert all(map(is_answered, again)), "nothing waits, so nobody waits for a turn"
        pending.state.validate()

    on_virtual_loop(run())


def test_ingress_that_asks_for_much_delays_its_own_requests() -> None:
    async def run() -> None:
        pending = CountedPlacements()
        many = [pending.ask(ask(f"r{number}", 100), GREEDY) for number in range(100 * MOST_PER_TURN)]
        one = pending.ask(ask("one", 100), MODEST)
        await turns(1)
        assert is_answered(one)
        assert not all(map(is_answered, many))

    on_virtual_loop(run())


def test_ingress_that_asks_for_more_than_its_share_is_refused_and_another_one_is_not() -> None:
    async def run() -> None:
        pending = CountedPlacements()
        many = [pending.ask(ask(f"r{number}", 100), GREEDY) for number in range(MOST_IN_TURNS + MOST_PER_TURN)]
        assert not any(isinstance(answer, Rejection) for answer in many)
        refused = pending.ask(ask("beyond", 100), GREEDY)
        assert isinstance(refused, Rejection)
        assert refused.is_overload
        assert 1.0 <= refused.retry_after_s <= 60.0
        resumed = pending.ask(ask("resumed", 100, attempt=2), GREEDY)
        one = pending.ask(ask("one", 100), MODEST)
        assert isinstance(resumed, asyncio.Future)
        assert isinstance(one, asyncio.Future)

    on_virtual_loop(run())


def test_request_that_ends_before_its_turn_is_not_placed() -> None:
    async def run() -> None:
        pending = CountedPlacements()
        for number in range(MOST_PER_TURN):
            pending.ask(ask(f"r{number}", 100, path=Path.DECODE), GREEDY)
        ended = pending.ask(ask("ended", 100, path=Path.DECODE), GREEDY)
        gone = pending.ask(ask("gone", 100, path=Path.DECODE), MODEST)
        pending.tell(RequestClosed(request_id=RequestId("ended")))
        pending.withdraw_of(MODEST)
        await turns(3)
        assert isinstance(ended, asyncio.Future)
        assert isinstance(gone, asyncio.Future)
        assert ended.cancelled()
        assert gone.cancelled()
        assert sum(worker.num_placed for worker in pending.state.view(0.0).workers) == MOST_PER_TURN
        pending.state.validate()

    on_virtual_loop(run())


def test_wait_for_a_turn_counts_as_age_of_the_request() -> None:
    async def run() -> None:
        pending, loop = CountedPlacements(), asyncio.get_running_loop()
        for number in range(MOST_PER_TURN):
            pending.ask(ask(f"r{number}", 100), GREEDY)
        late = pending.ask(ask("late", 100, age_s=0.5), GREEDY)
        assert isinstance(late, asyncio.Future)
        asked_at = loop.time()
        loop.time = lambda: asked_at + 0.25  # type: ignore[method-assign]  # time passes while others are placed
        placed = await late
        assert isinstance(placed, Placement)
        assert placed.predicted is not None
        assert placed.predicted.waits_s == pytest.approx(0.75)

    on_virtual_loop(run())

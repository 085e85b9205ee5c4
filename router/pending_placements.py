"""PendingPlacements: callers that ask for a placement wait here until RouterState has decided. It is the same under Ray
and in the simulator. The clock is the event loop's.

A turn of the event loop considers MOST_PER_TURN requests at most, so that a Scheduler that is asked for more than it
can place still reads its messages, and answers pings and reports. Further requests wait for a later turn, one of each
ingress after the other, and those beyond MOST_IN_TURNS are refused unconsidered.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from cluster.messages.ids import IngressId, RequestId, SloClass, WorkerId
from cluster.messages.kv_events import KvEvents
from cluster.messages.placement import Placement, PlacementRequest, Rejection
from cluster.messages.reports import DeltaReply, ReportDelta, ReportReply, WorkerReport
from cluster.messages.scheduler_events import Pause, RequestClosed, SchedulerEvent, WorkerLeft
from router.recording.recorded_state import State
from router.turns import Turns

DECIDE_INTERVAL_S = 0.02
"""Least time between two decisions about the requests that wait, in seconds. Higher finds room later; lower costs the
Scheduler more time under overload.
"""
MOST_PER_TURN = 8
"""Requests that are considered in one turn of the event loop, and as many that have waited for room. One takes 0.1 to 1
ms. More has messages wait for longer while the Scheduler is overloaded; fewer spends more time on turns.
"""
MOST_IN_TURNS = 1024
"""Requests that wait for a turn, of all ingresses together, before an ingress that has its share of them is refused
more. Requests that were placed before always wait. More answers later while the Scheduler is overloaded, and takes
memory (100 kB for a prompt of 32k tokens); fewer refuses requests of a burst that it would have placed.
"""


class _Asked(NamedTuple):
    """A request that waits for a turn."""

    request: PlacementRequest
    answer: asyncio.Future[Placement | Rejection]
    at: float
    """When it was asked for, in seconds."""


class PendingPlacements:
    def __init__(self, state: State) -> None:
        self.state = state
        self._loop = asyncio.get_running_loop()
        self._answers: dict[RequestId, asyncio.Future[Placement | Rejection]] = {}
        """The answers that callers wait for."""
        self._asked_at: dict[RequestId, float] = {}
        """When they were asked for, in seconds."""
        self._timer: asyncio.Handle | None = None
        self._decides_at = float("inf")
        """When the timer is due. Handles of uvloop have no method for it."""
        self._decided_at = float("-inf")
        self._turns: Turns[IngressId | None, _Asked] = Turns()
        """Requests that are not considered yet."""
        self._num_left = MOST_PER_TURN
        """Requests that may be considered in this turn of the event loop."""
        self._is_turn_due = False
        self.on_pause: Callable[[IngressId | None, Pause, SloClass], None] = _ignore
        """Called for each request whose ingress is to be asked to pause it. Must not raise."""

    async def place(self, request: PlacementRequest, ingress: IngressId | None = None) -> Placement | Rejection:
        """Choose workers and charge the request to them. A caller that stops waiting must send RequestClosed."""
        answer = self.ask(request, ingress)
        return await answer if isinstance(answer, asyncio.Future) else answer

    def ask(
        self, request: PlacementRequest, ingress: IngressId | None
    ) -> Placement | Rejection | asyncio.Future[Placement | Rejection]:
        """As `place`. Returns a future if the request waits."""
        if not self._is_turn_due:
            self._is_turn_due = True
            self._loop.call_soon(self._begin_turn)
        if self._num_left and not self._turns:
            self._num_left -= 1
            answer = self._consider(request, ingress)
            if answer is not None:
                return answer
            future = self._future_of(request.request_id)
            self._look_later()
            return future
        if request.attempt == 1 and self._turns.has_share(ingress, MOST_IN_TURNS):
            refused = self.state.place(request, self._loop.time(), ingress, turns_away=True)
            assert refused is not None
            return refused
        future = self._future_of(request.request_id)
        self._turns.add(ingress, _Asked(request, future, self._loop.time()))
        return future

    def tell(self, event: WorkerLeft | SchedulerEvent, ingress: IngressId | None = None) -> None:
        """`ingress`: the one that tells of the event."""
        self.state.handle(event, self._loop.time(), ingress)
        if isinstance(event, RequestClosed):
            self._withdraw(event.request_id)
        self._look_later()

    def report(self, report: WorkerReport) -> ReportReply:
        now = self._loop.time()
        self.state.handle(report, now)
        self._look_later()
        return self.state.reply_to(report, now)

    def report_delta(self, delta: ReportDelta) -> DeltaReply:
        exchange = self.state.exchange
        report = exchange.whole(delta)
        if report is None:
            return DeltaReply(wants_standing=True)
        return exchange.reply(report, self.report(report))

    def worker_disconnected(self, worker: WorkerId) -> None:
        self.state.disconnected(worker)
        self._look_later()

    def kv_events(self, events: KvEvents) -> bool:
        """Returns True to ask for a snapshot of what the worker caches."""
        return self.state.handle_kv_events(events, self._loop.time())

    def keep_open(self, ingress: IngressId, open_requests: frozenset[RequestId]) -> None:
        """Forget the requests of an ingress that are not among its open ones."""
        for request_id in self.state.keep_open(ingress, open_requests, self._loop.time()):
            self._withdraw(request_id)
        self._look_later()

    def withdraw_of(self, ingress: IngressId) -> None:
        """An ingress has lost its connection, and with it the answers that it waits for."""
        for request_id in self.state.withdraw_of(ingress):
            self._withdraw(request_id)
        for asked in self._turns.drop(ingress):
            asked.answer.cancel()

    def ingress_gone(self, ingress: IngressId) -> None:
        self.withdraw_of(ingress)
        self.keep_open(ingress, frozenset())

    def _begin_turn(self) -> None:
        """Consider requests that wait for this turn of the event loop."""
        self._is_turn_due, self._num_left = False, MOST_PER_TURN
        while self._turns and self._num_left:
            ingress, asked = self._turns.take()
            if asked.answer.done():  # nobody waits for it any more
                continue
            self._num_left -= 1
            age_s = asked.request.age_s + self._loop.time() - asked.at
            try:
                answer = self._consider(msgspec.structs.replace(asked.request, age_s=age_s), ingress)
            except Exception as error:  # it must not keep the others from their answers
                asked.answer.set_exception(error)
                continue
            if answer is not None:
                asked.answer.set_result(
                    _after_wait(answer, self._asked_at.get(asked.request.request_id), self._loop.time())
                )
        if self._num_left < MOST_PER_TURN:
            self._is_turn_due = True
            self._loop.call_soon(self._begin_turn)
            self._look_later()

    def _consider(self, request: PlacementRequest, ingress: IngressId | None) -> Placement | Rejection | None:
        answer = self.state.place(request, self._loop.time(), ingress)
        self._send_pauses()
        return answer

    def _future_of(self, request_id: RequestId) -> asyncio.Future[Placement | Rejection]:
        """The answer that the caller of a request waits for from now on."""
        self._withdraw(request_id)
        future = self._answers[request_id] = self._loop.create_future()
        self._asked_at[request_id] = self._loop.time()
        future.add_done_callback(lambda _: self._forget(request_id, future))
        return future

    def _send_pauses(self) -> None:
        for ingress, pause, slo_class in self.state.take_pauses():
            self.on_pause(ingress, pause, slo_class)

    def _withdraw(self, request_id: RequestId) -> None:
        """No caller waits for this answer any more."""
        self._asked_at.pop(request_id, None)
        if (waiting := self._answers.pop(request_id, None)) is not None:
            waiting.cancel()

    def _forget(self, request_id: RequestId, future: asyncio.Future[Placement | Rejection]) -> None:
        if self._answers.get(request_id) is future:
            del self._answers[request_id]
        if request_id not in self._answers:
            self._asked_at.pop(request_id, None)

    def _look_later(self) -> None:
        """Decide soon, and at the next deadline."""
        if not self._answers:
            return
        soon = self._decided_at + DECIDE_INTERVAL_S
        if self._decides_at > soon:
            if self._timer is not None:
                self._timer.cancel()
            self._decide_at(soon)

    def _decide_at(self, at: float) -> None:
        self._decides_at, self._timer = at, self._loop.call_at(at, self._decide)

    def _decide(self) -> None:
        self._timer, self._decides_at = None, float("inf")
        self._decided_at = now = self._loop.time()
        decisions = self.state.decide(now, MOST_PER_TURN)
        for request_id, answer in decisions:
            waiting = self._answers.pop(request_id, None)
            if waiting is None or waiting.done():
                continue
            if isinstance(answer, Exception):
                waiting.set_exception(answer)
            else:
                waiting.set_result(_after_wait(answer, self._asked_at.get(request_id), now))
        self._send_pauses()
        if len(decisions) == MOST_PER_TURN:  # more may be due
            self._decide_at(now)
            return
        next_at = self.state.next_decision_at()
        if self._answers and next_at is not None:
            self._decide_at(max(next_at, now + DECIDE_INTERVAL_S))


def _after_wait(answer: Placement | Rejection, asked_at: float | None, now: float) -> Placement | Rejection:
    """The answer, with the time that its request has waited for it."""
    if asked_at is None or isinstance(answer, Rejection):
        return answer
    return msgspec.structs.replace(answer, queued_s=now - asked_at)


def _ignore(ingress: IngressId | None, pause: Pause, slo_class: SloClass) -> None:
    """Nobody is to be asked."""

"""PendingPlacements: callers that ask for a placement wait here until RouterState has decided. It is the same under Ray
and in the simulator. The clock is the event loop's.
"""

import asyncio
from collections.abc import Callable

from cluster.messages.ids import IngressId, RequestId, SloClass, WorkerId
from cluster.messages.kv_events import KvEvents
from cluster.messages.placement import Placement, PlacementRequest, Rejection
from cluster.messages.reports import DeltaReply, ReportDelta, ReportReply, WorkerReport
from cluster.messages.scheduler_events import Pause, RequestClosed, SchedulerEvent, WorkerLeft
from router.state import RouterState

DECIDE_INTERVAL_S = 0.02
"""Least time between two decisions about the requests that wait, in seconds. Higher finds room later; lower costs the
Scheduler more time under overload.
"""


class PendingPlacements:
    def __init__(self, state: RouterState) -> None:
        self.state = state
        self._loop = asyncio.get_running_loop()
        self._answers: dict[RequestId, asyncio.Future[Placement | Rejection]] = {}
        """The answers that callers wait for."""
        self._timer: asyncio.Handle | None = None
        self._decides_at = float("inf")
        """When the timer is due. Handles of uvloop have no method for it."""
        self._decided_at = float("-inf")
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
        answer = self.state.place(request, self._loop.time(), ingress)
        self._send_pauses()
        if answer is not None:
            return answer
        self._withdraw(request.request_id)
        future = self._answers[request.request_id] = self._loop.create_future()
        future.add_done_callback(lambda _: self._forget(request.request_id, future))
        self._look_later()
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

    def ingress_gone(self, ingress: IngressId) -> None:
        self.keep_open(ingress, frozenset())

    def _send_pauses(self) -> None:
        for ingress, pause, slo_class in self.state.take_pauses():
            self.on_pause(ingress, pause, slo_class)

    def _withdraw(self, request_id: RequestId) -> None:
        """No caller waits for this answer any more."""
        if (waiting := self._answers.pop(request_id, None)) is not None:
            waiting.cancel()

    def _forget(self, request_id: RequestId, future: asyncio.Future[Placement | Rejection]) -> None:
        if self._answers.get(request_id) is future:
            del self._answers[request_id]

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
        for request_id, answer in self.state.decide(now):
            waiting = self._answers.pop(request_id, None)
            if waiting is None or waiting.done():
                continue
            if isinstance(answer, Exception):
                waiting.set_exception(answer)
            else:
                waiting.set_result(answer)
        self._send_pauses()
        next_at = self.state.next_decision_at()
        if self._answers and next_at is not None:
            self._decide_at(max(next_at, now + DECIDE_INTERVAL_S))


def _ignore(ingress: IngressId | None, pause: Pause, slo_class: SloClass) -> None:
    """Nobody is to be asked."""

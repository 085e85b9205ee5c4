"""The Scheduler's side of its connections: what ingresses and workers may ask it and tell it.

Holds no policy. Placements are decided by router/state.py, for the callers that wait in router/pending_placements.py;
whose messages count, and which were taken before, in router/ingresses.py. The clock is the event loop's.
"""

import asyncio
import logging

from cluster import metrics
from cluster.errors import ServingError
from cluster.messages.ids import Address, WorkerId
from cluster.messages.kv_events import KvEvents
from cluster.messages.placement import Placement, PlacementRequest, Rejection
from cluster.messages.reports import ReportReply, WorkerReport
from cluster.messages.scheduler_events import Events, OpenRequests, WorkerLeft
from cluster.messages.views import ClusterView, QueuedRequest
from cluster.rpc.connection import Connection, Service
from cluster.rpc.protocol import (
    EVENTS,
    HEARD,
    KV_EVENTS,
    LEAVING,
    LOCATE,
    OPEN_REQUESTS,
    PLACE,
    QUEUE,
    REPORT,
    VIEW,
)
from router.ingresses import SWEEP_S, Ingresses
from router.pending_placements import PendingPlacements
from router.state import RouterState

logger = logging.getLogger("baton.scheduler")

ACKNOWLEDGE_S = 0.25
"""How long events wait for their acknowledgement, in seconds. Shorter costs a message more often, longer has an ingress
keep and perhaps repeat more.
"""


class SchedulerService:
    def __init__(self, state: RouterState) -> None:
        self.desk = PendingPlacements(state)
        self.service = Service()
        """What the listener of the Scheduler is to be started with."""
        self._ingresses = Ingresses()
        self._acknowledging: set[Connection] = set()
        self._sweeping: asyncio.TimerHandle | None = None
        service = self.service
        service.on_call_of(PLACE, self._place)
        service.on_post(OPEN_REQUESTS, self._open_requests)
        service.on_post(EVENTS, self._events)
        service.when_closed(self._closed)
        service.on_call(REPORT, self._report)
        service.on_call(LEAVING, self._leaving)  # as a post it would overtake a report that is read together with it
        service.on_post(KV_EVENTS, self._kv_events)
        service.on_call(VIEW, self._view)
        service.on_call(QUEUE, self._queue)
        service.on_call(LOCATE, self._locate)

    async def _place(self, connection: Connection, request: PlacementRequest) -> Placement | Rejection:
        ingress = self._ingresses.speaking(connection)
        if ingress is None:
            raise ServingError("a placement was asked for on a connection that no ingress speaks on")
        asked_at = _now()
        answer = await self.desk.place(request, ingress)
        metrics.PLACEMENT.observe(_now() - asked_at)
        metrics.count_placement(answer)
        return answer

    def _open_requests(self, connection: Connection, message: OpenRequests) -> None:
        if self._ingresses.introduced(message, connection):
            self.desk.keep_open(message.ingress, frozenset(message.requests))

    def _events(self, connection: Connection, message: Events) -> None:
        for event in self._ingresses.take(connection, message):
            self.desk.tell(event)
        if connection not in self._acknowledging:
            self._acknowledging.add(connection)
            asyncio.get_running_loop().call_later(ACKNOWLEDGE_S, self._acknowledge, connection)

    def _acknowledge(self, connection: Connection) -> None:
        self._acknowledging.discard(connection)
        if connection.is_open and (through := self._ingresses.taken_through(connection)):
            connection.post(HEARD, through)

    def _closed(self, connection: Connection) -> None:
        if (ingress := self._ingresses.lost(connection)) is not None:
            self.desk.withdraw_of(ingress)
            self._sweep_later()

    def _sweep_later(self) -> None:
        if self._sweeping is None and self._ingresses.needs_sweep:
            self._sweeping = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        self._sweeping = None
        for ingress in self._ingresses.sweep():
            logger.warning("ingress %s has gone: its requests are charged no more", ingress)
            self.desk.ingress_gone(ingress)
        self._sweep_later()

    async def _leaving(self, event: WorkerLeft) -> None:
        self.desk.tell(event)

    def _kv_events(self, _: Connection, events: KvEvents) -> None:
        self.desk.kv_events(events)  # the answer to the worker's next report asks for what was missed

    async def _report(self, report: WorkerReport) -> ReportReply:
        return self.desk.report(report)

    async def _view(self, _: None) -> ClusterView:
        return self.desk.state.view(_now())

    async def _queue(self, _: None) -> list[QueuedRequest]:
        return self.desk.state.queued(_now())

    async def _locate(self, worker: WorkerId) -> Address | None:
        return self.desk.state.address_of(worker)


def _now() -> float:
    return asyncio.get_running_loop().time()

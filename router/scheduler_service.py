"""The Scheduler's side of its connections: the calls and messages of ingresses and workers.

This module holds no policy. router/state.py decides about placements, for the callers that wait in
router/pending_placements.py. router/ingresses.py decides which messages of ingresses count. The clock is the event
loop's.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable

import msgspec

from cluster.errors import ServingError
from cluster.messages.ids import Address, IngressId, SloClass, WorkerId
from cluster.messages.kv_events import KvEvents
from cluster.messages.placement import Placement, PlacementRequest, Rejection
from cluster.messages.quality import WorkerQuarantine
from cluster.messages.reports import DeltaReply, ReportDelta
from cluster.messages.scheduler_events import Events, OpenRequests, Pause, WorkerLeft
from cluster.messages.views import ClusterView, QueuedRequest, RosterChange
from cluster.metrics.scheduler import PAUSES_ASKED, PLACEMENT, WORKERS_LOST, count_placement
from cluster.rpc.connection import Connection, Service
from cluster.rpc.protocol import (
    DRAIN,
    EVENTS,
    HEARD,
    KV_EVENTS,
    LEAVING,
    LOAD,
    LOCATE,
    OPEN_REQUESTS,
    PAUSE,
    PLACE,
    QUARANTINE,
    QUEUE,
    REPLACED,
    REPORT,
    ROSTER,
    STATUS,
    VIEW,
)
from router.drain_keeper import DrainKeeper
from router.ingresses import SWEEP_S, Ingresses
from router.pending_placements import PendingPlacements
from router.prefixes.kv_backlog import KvBacklog
from router.recording.recorded_state import State
from router.seldom_logged import SeldomLogged

logger = logging.getLogger("baton.scheduler")

ACKNOWLEDGE_S = 0.25
"""Time that events wait for their acknowledgement, in seconds. Lower sends more messages; higher has an ingress keep,
and perhaps repeat, more events.
"""


class SchedulerService:
    def __init__(
        self,
        state: State,
        on_replaced: Callable[[int], None] = lambda epoch: None,
        drains: Callable[[], DrainKeeper] | None = None,
    ) -> None:
        """`on_replaced` is called with the epoch of another Scheduler that a worker or an ingress has found. `drains`:
        None where no worker is ever drained, as in the simulator.
        """
        self.pending = PendingPlacements(state)
        self._loop = asyncio.get_running_loop()
        self.service = Service()
        """The service that the Scheduler's listener is started with."""
        self._ingresses = Ingresses()
        self._acknowledging: set[Connection] = set()
        self._reports_on: dict[WorkerId, Connection] = {}
        """The connection of each worker that has reported, and is connected."""
        self._worker_on: dict[Connection, WorkerId] = {}
        self._sweeping: asyncio.TimerHandle | None = None
        self._backlog = KvBacklog()
        self._dropped = SeldomLogged()
        """KV events that are dropped."""
        self._failed = SeldomLogged()
        """KV events that the index fails to take in."""
        self._is_indexing = False
        """`_index` is about to be called."""
        self.pending.on_pause = self._ask_to_pause
        service = self.service
        service.on_call_of(PLACE, self._place)
        service.on_post(OPEN_REQUESTS, self._open_requests)
        service.on_post(EVENTS, self._events)
        service.when_closed(self._closed)
        service.on_call_of(REPORT, self._report)
        service.on_call(LEAVING, self._leaving)
        service.on_post(KV_EVENTS, self._kv_events)
        service.on_call(ROSTER, self._roster)
        service.on_call(VIEW, self._view)
        service.on_call(QUEUE, self._queue)
        service.on_call(LOCATE, self._locate)
        service.on_call(QUARANTINE, lambda told: _quarantine(state, told, self._loop.time()))
        process = secrets.token_hex(8)
        service.on_call(LOAD, lambda ask: state.load.read(ask, process, self._loop.time()))
        service.on_call(STATUS, lambda _: state.status.read(self._loop.time()))
        if drains is not None:
            service.on_call(DRAIN, lambda ask: drains().change(ask))
        service.on_post(REPLACED, lambda _, epoch: on_replaced(epoch))

    def _place(
        self, connection: Connection, request: PlacementRequest
    ) -> Placement | Rejection | asyncio.Future[Placement | Rejection]:
        ingress = self._ingresses.speaking(connection)
        if ingress is None:
            raise ServingError("placement asked for over a connection on which no ingress has given its id")
        asked_at = self._loop.time()
        answer = self.pending.ask(request, ingress)
        if isinstance(answer, asyncio.Future):
            answer.add_done_callback(lambda answered: _count_later(answered, self._loop.time() - asked_at))
        else:
            _count(answer, self._loop.time() - asked_at)
        return answer

    def _ask_to_pause(self, ingress: IngressId | None, pause: Pause, slo_class: SloClass) -> None:
        """An ingress that cannot be reached now is not asked again: the request then runs to its end."""
        connection = self._ingresses.connection_of(ingress) if ingress is not None else None
        if isinstance(connection, Connection) and connection.is_open:
            connection.post(PAUSE, pause)
            PAUSES_ASKED.labels(slo_class).inc()
            logger.debug("ingress %s is asked to pause request %s of class %s", ingress, pause.request_id, slo_class)

    def _open_requests(self, connection: Connection, message: OpenRequests) -> None:
        if self._ingresses.introduced(message, connection):
            self.pending.keep_open(message.ingress, frozenset(message.requests))

    def _events(self, connection: Connection, message: Events) -> None:
        ingress = self._ingresses.speaking(connection)
        for event in self._ingresses.take(connection, message):
            self.pending.tell(event, ingress)
        self._log_holds(connection)
        if connection not in self._acknowledging:
            self._acknowledging.add(connection)
            self._loop.call_later(ACKNOWLEDGE_S, self._acknowledge, connection)

    def _log_holds(self, connection: Connection) -> None:
        """Log the holds that the events of a connection have begun."""
        for held in self.pending.state.suspects.take_new():
            logger.info(
                "ingress %s (%s) could not reach worker %s, and gets no placement there for %.0f s",
                held.ingress,
                connection.peer,
                held.worker,
                held.seconds,
            )

    def _acknowledge(self, connection: Connection) -> None:
        self._acknowledging.discard(connection)
        if connection.is_open and (through := self._ingresses.taken_through(connection)):
            connection.post(HEARD, through)

    def _closed(self, connection: Connection) -> None:
        if (worker := self._worker_on.pop(connection, None)) is not None and self._reports_on.get(worker) is connection:
            del self._reports_on[worker]
            self.pending.worker_disconnected(worker)
        if (ingress := self._ingresses.lost(connection)) is not None:
            self.pending.withdraw_of(ingress)
            self._sweep_later()

    def _sweep_later(self) -> None:
        if self._sweeping is None and self._ingresses.needs_sweep:
            self._sweeping = self._loop.call_later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        self._sweeping = None
        for ingress in self._ingresses.sweep():
            logger.warning("ingress %s is gone: its requests are no longer charged", ingress)
            self.pending.ingress_gone(ingress)
        self._sweep_later()

    def _leaving(self, event: WorkerLeft) -> None:
        self.pending.tell(event)
        _count_lost(self.pending.state)

    def _kv_events(self, _: Connection, events: KvEvents) -> None:
        worker = events.worker
        if not self._backlog.add(events) and (number := self._dropped.count(worker, self._loop.time())):
            logger.warning("%d messages of KV events of worker %s are dropped: too much is sent", number, worker)
        self._index_soon()

    def _index_soon(self) -> None:
        """Work on the index after whatever else has come, if there is work."""
        if not self._is_indexing and (self._backlog or self.pending.state.index.needs_sweep):
            self._is_indexing = True
            self._loop.call_soon(self._index)

    def _index(self) -> None:
        """Take a slice of the KV events that wait, and sweep a part of the index."""
        self._is_indexing = False
        for events in self._backlog.take_slice():
            self._take_kv_events(events)
        index = self.pending.state.index
        if index.needs_sweep:
            index.sweep()
        self._index_soon()

    def _take_kv_events(self, events: KvEvents) -> None:
        """The reply to the worker's next report asks for a snapshot if one is needed."""
        try:
            self.pending.kv_events(events)
        except Exception:  # the messages after this one must be taken, too
            self.pending.state.index.miss(events.worker)
            if number := self._failed.count(events.worker, self._loop.time()):
                logger.exception("%d messages of KV events of worker %s could not be taken", number, events.worker)

    def _report(self, connection: Connection, delta: ReportDelta) -> DeltaReply:
        if self._reports_on.get(delta.worker) is not connection:
            self._reports_on[delta.worker] = connection
            self._worker_on[connection] = delta.worker
        if delta.worker in self._backlog:  # what the report says of KV events is not missed: it waits
            delta = msgspec.structs.replace(delta, kv_events_through=None)
        reply = self.pending.report_delta(delta)
        self._index_soon()  # workers that were forgotten now may have left much to sweep
        _count_lost(self.pending.state)
        for why in self.pending.state.take_mismatches():
            logger.error("some prefill and decode workers cannot hand over to each other: %s", why)
        return reply

    def _roster(self, since: int) -> RosterChange:
        return self.pending.state.roster(since, self._loop.time())

    def _view(self, _: None) -> ClusterView:
        return self.pending.state.view(self._loop.time())

    def _queue(self, _: None) -> list[QueuedRequest]:
        return self.pending.state.queued(self._loop.time())

    def _locate(self, worker: WorkerId) -> Address | None:
        return self.pending.state.address_of(worker)


def _quarantine(state: State, told: WorkerQuarantine, now: float) -> None:
    change = state.quarantined.told(told.workers, now, told.lease)
    for worker, why in change.begun.items():
        logger.error("worker %s is in quarantine, and gets no requests: %s", worker, why)
    for worker in change.ended:
        logger.warning("the quarantine of worker %s is over", worker)


def _count_lost(state: State) -> None:
    for pool, worker in state.lost.take_new():
        WORKERS_LOST.labels(pool).inc()
        logger.warning("%s worker %s is lost: it has not said that it leaves", pool, worker)


def _count(answer: Placement | Rejection, seconds: float) -> None:
    PLACEMENT.observe(seconds)
    count_placement(answer)


def _count_later(answer: asyncio.Future[Placement | Rejection], seconds: float) -> None:
    if not answer.cancelled() and answer.exception() is None:
        _count(answer.result(), seconds)

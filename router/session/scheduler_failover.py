"""SchedulerFailover: the Scheduler for the sessions of an ingress. While the Scheduler is away, the ingress places.

- **Away.** The Scheduler is away when its connection is lost. A process that hangs loses its connection after some
  seconds (cluster/rpc/connection.py). A slow Scheduler is not away.
- **Back.** The Scheduler is back when it has told which workers live. A new Scheduler process first needs reports
  of the workers.
- **Waiting.** A request waits for a Scheduler that has just gone away, for PATIENCE_S at most. Requests that come later
  do not wait. If no worker is known that a request was not lost with, the request waits for as long as its class may
  wait for a worker (`Objective.outage_wait_s`). A request waits without limit for the answer of a Scheduler that is
  there, because the request may be in the Scheduler's queue.

Events of sessions are sent soon (cluster/clients/event_sender.py) and kept until the Scheduler has them
(cluster/clients/scheduler_outbox.py). The open requests are listed every LOOK_INTERVAL_S.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress

import msgspec

from cluster.clients.event_sender import EventSender
from cluster.clients.known_workers import KnownWorkers
from cluster.clients.scheduler_client import SchedulerClient
from cluster.clients.scheduler_outbox import SchedulerOutbox
from cluster.clients.worker_client import WorkerConnections
from cluster.errors import ServingError
from cluster.messages.ids import Address, CellName, IngressId, Pool, RequestId
from cluster.messages.placement import Placement, PlacementRequest, Rejection
from cluster.messages.scheduler_events import EngineLostWith, Pause, RequestClosed, SchedulerEvent
from cluster.messages.views import Readiness
from cluster.rpc.connection import Connection, ConnectionLost
from cluster.rpc.protocol import HEARD, OPEN_REQUESTS, PAUSE
from router.quarantine.quarantine import MAX_ENGINES_LOST, Quarantine, quarantined
from router.session.fallback_placement import FallbackPlacement

logger = logging.getLogger("baton.scheduling")

PATIENCE_S = 1.0
"""Time for which requests wait for a Scheduler that has gone away, in seconds. Longer delays requests whenever the
Scheduler is replaced; shorter places more requests without the Scheduler's knowledge.
"""
LOOK_INTERVAL_S = 5.0
"""Time between two looks at the Scheduler, in seconds. With each look an ingress learns which workers have come and
gone, for the time without a Scheduler, and lists its open requests. Longer makes both older; shorter costs the
Scheduler CPU for each ingress.
"""
RETRY_INTERVAL_S = 0.1
"""Time between two looks while the Scheduler is away, in seconds. Longer finds a new one later; shorter costs CPU."""
GRACE_S = 1.0
"""Time after which a new Scheduler without workers is believed to have none, in seconds. Longer keeps placing on
workers that are gone; shorter forgets workers that a new Scheduler does not know yet.
"""


class SchedulerFailover:
    """A `SchedulerPort` (router/session/ports.py)."""

    def __init__(
        self,
        scheduler: SchedulerClient,
        workers: WorkerConnections,
        fallback: FallbackPlacement,
        cell: CellName | None = None,
        may_lack: Pool | None = None,
    ) -> None:
        """`cell`: the cell of the Scheduler, for the log. None if there is only one. `may_lack`: the pool that may be
        empty, because the other one does its work.
        """
        self._name = "the Scheduler" if cell is None else f"the Scheduler of cell {cell}"
        self._scheduler = scheduler
        self._workers = workers
        self.fallback = fallback
        """It has the workers that lived when the Scheduler was there last."""
        self.known = KnownWorkers(may_lack)
        """What the Scheduler said last, LOOK_INTERVAL_S ago at most while it is there."""
        self._outbox = SchedulerOutbox(IngressId(secrets.token_hex(8)))
        self._quarantine = Quarantine()
        """The quarantine of this ingress's own requests, for the time when the Scheduler is away. At all other times
        the Scheduler alone decides about the quarantine: it knows the lost engines of all ingresses, and releases
        requests that only shared an engine with the cause.
        """
        self._events = EventSender()
        scheduler.on_connected = self._on_connected
        scheduler.service.on_post(HEARD, lambda _, through: self._outbox.heard(through))
        self._to_pause: dict[RequestId, Callable[[int], None]] = {}
        """How each open request is told to pause."""
        scheduler.service.on_post(PAUSE, self._pause)
        scheduler.service.when_closed(self._on_closed)
        self._is_back = asyncio.Event()
        self._away_since = _now()
        self._reached_at: float | None = None
        """Time of the first answer of this Scheduler process. None before it."""
        self._was_there = False
        """Whether the Scheduler has been there at any time. Its first answer is no return."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when the Scheduler goes away or comes back, and when workers come or go."""
        self._look_now = asyncio.Event()
        self._looking = asyncio.create_task(self._look_forever())

    def close(self) -> None:
        self._looking.cancel()

    @property
    def is_there(self) -> bool:
        return self._is_back.is_set()

    async def place(self, request: PlacementRequest) -> Placement | Rejection:
        self._begin_to_ask(request)
        began_at = _now()
        answer = await self._ask(request)
        while answer is None:
            if (waits_s := began_at + self.fallback.outage_wait_s(request) - _now()) > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(waits_s):
                        await self._is_back.wait()
                answer = await self._ask(request)
            else:
                answer = self._place_alone(request)
        if isinstance(answer, Placement):
            self.fallback.placed(request.request_id, answer.generating)
        return answer

    async def place_if_there(self, request: PlacementRequest) -> Placement | Rejection | None:
        """The Scheduler's answer. None as soon as the Scheduler is away: the caller has another one to ask."""
        self._begin_to_ask(request)
        if not self.is_there:
            return None
        try:
            answer = await self._scheduler.place(request)
        except ConnectionLost:
            self._lost()
            return None
        if isinstance(answer, Placement):
            self.fallback.placed(request.request_id, answer.generating)
        return answer

    def withdraw(self, request: PlacementRequest) -> None:
        """Another Scheduler is asked for the request from now on."""
        self.tell(RequestClosed(request_id=request.request_id, digest=request.digest))
        self._events.send_now()  # the request may come back

    def when_to_pause(self, request_id: RequestId, pause: Callable[[int], None]) -> None:
        self._to_pause[request_id] = pause

    def tell(self, event: SchedulerEvent) -> None:
        if isinstance(event, RequestClosed):
            self._to_pause.pop(event.request_id, None)
            self.fallback.closed(event.request_id)
            if event.is_harmless:
                self._quarantine.clear(event.digest)
        if isinstance(event, EngineLostWith):
            self._quarantine.lost(event.digest, event.worker, event.num_engines_lost, _now())
        self._events.send(self._outbox.put(event, _now()))

    async def readiness(self) -> Readiness:
        """Whether the cluster can serve, as the Scheduler sees it now. A caller that gets an answer also finds the
        Scheduler back for placements. Raises ServingError: the Scheduler is away or slow.
        """
        await self._learn()
        return self.known.readiness

    def _begin_to_ask(self, request: PlacementRequest) -> None:
        self._outbox.asks(request)
        if request.attempt > 1:
            self._events.send_now()  # how the attempt before it ended

    def _place_alone(self, request: PlacementRequest) -> Placement | Rejection:
        num_lost = self._quarantine.num_lost(request.digest, _now())
        if num_lost >= MAX_ENGINES_LOST:
            return quarantined()
        if num_lost > request.num_engines_lost:
            request = msgspec.structs.replace(request, num_engines_lost=num_lost)
        return self.fallback.place(request)

    async def _ask(self, request: PlacementRequest) -> Placement | Rejection | None:
        """The Scheduler's answer. None if the Scheduler is away."""
        while await self._is_there():
            try:
                return await self._scheduler.place(request)
            except ConnectionLost:
                self._lost()
        return None

    async def _is_there(self) -> bool:
        """Whether the Scheduler is there, after a wait for one that has just gone away."""
        if not self._is_back.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._away_since + PATIENCE_S):
                    await self._is_back.wait()
        return self._is_back.is_set()

    def _pause(self, connection: Connection, pause: Pause) -> None:
        """A Scheduler that another one has replaced has no say any more."""
        pause_attempt = self._to_pause.get(pause.request_id)
        if connection is self._events.connection and pause_attempt is not None:
            pause_attempt(pause.attempt)

    def _on_connected(self, connection: Connection, address: Address) -> None:
        """Post the open requests and the kept events. They are the first messages on a connection: only in this order
        is the list of open requests exact.
        """
        self.known.begin_anew()
        open_requests, kept = self._outbox.connected(address.process, _now())
        with suppress(ConnectionLost):
            connection.post(OPEN_REQUESTS, open_requests)
        self._events.connected(connection, kept)

    def _on_closed(self, connection: Connection) -> None:
        if connection is self._events.connection:
            self._events.disconnected()
            self._lost()

    def _list_open(self) -> None:
        if (connection := self._events.connection) is not None:
            self._events.send_now()  # a request that has ended is no open one
            with suppress(ConnectionLost):
                connection.post(OPEN_REQUESTS, self._outbox.open_requests())

    def _lost(self) -> None:
        if self._is_back.is_set():
            self._is_back.clear()
            self._away_since = _now()
            self._look_now.set()
            logger.warning("%s is away", self._name)
            self.on_change()
        self._reached_at = None

    async def _look_forever(self) -> None:
        while True:
            try:
                self._list_open()
                await self._learn()
            except ServingError as error:
                if self._events.connection is None:
                    self._lost()
                else:
                    logger.warning("%s is slow: %s", self._name, error)
            except Exception:  # the loop must go on after any error
                logger.exception("a look at %s failed", self._name)
                self._lost()
            with suppress(TimeoutError):
                is_known = self._is_back.is_set() and self.fallback.workers
                async with asyncio.timeout(LOOK_INTERVAL_S if is_known else RETRY_INTERVAL_S):
                    await self._look_now.wait()
            self._look_now.clear()

    async def _learn(self) -> None:
        """Learn which workers live. Raises ServingError: the Scheduler is away or slow."""
        self.known.take(await self._scheduler.roster(self.known.version))
        if self._reached_at is None:
            self._reached_at = _now()
        known = self.known.by_id
        if not known and not self._is_back.is_set() and _now() - self._reached_at < GRACE_S:
            return
        if self.fallback.workers and not known:
            self._look_now.set()  # a new Scheduler may have no report of a worker yet
        num_before, self.fallback.workers = len(self.fallback.workers), tuple(known.values())
        has_changed = not self.is_there or num_before != len(known)
        self._workers.learn(self._scheduler, {worker: entry.address for worker, entry in known.items()})
        if not self._is_back.is_set():
            self._is_back.set()
            level = logging.WARNING if self._was_there else logging.INFO
            logger.log(level, "%s is there and knows %d workers", self._name, len(known))
            self._was_there = True
        if has_changed:
            self.on_change()


def _now() -> float:
    return asyncio.get_running_loop().time()

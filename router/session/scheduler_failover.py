"""The Scheduler as sessions ask it: the Scheduler itself, or while it is away a choice of our own.

A request waits for a Scheduler that has just gone, for PATIENCE_S at most; once it has been away for longer, nobody
waits. It is away when its connection is lost (a process that hangs loses it after some seconds,
cluster/rpc/connection.py) and back when it has told us of the workers: its successor must first hear from them. As long
as it is there its answer is waited for, because it may have the request queue. A Scheduler that is slow is not away.
Where no worker is known either, a request waits for the Scheduler as long as its class may wait for a worker
(`Objective.outage_wait_s`).

What sessions tell is posted at once, never waited for, and kept until the Scheduler has it
(cluster/clients/scheduler_outbox.py); the open requests are listed now and then.
"""

import asyncio
import logging
import secrets
from contextlib import suppress

import msgspec

from cluster.clients.scheduler_client import SchedulerClient
from cluster.clients.scheduler_outbox import SchedulerOutbox
from cluster.clients.worker_client import WorkerConnections
from cluster.errors import ServingError
from cluster.messages.ids import Address, IngressId
from cluster.messages.placement import Placement, PlacementRequest, Rejection
from cluster.messages.scheduler_events import EngineLostWith, RequestClosed, SchedulerEvent
from cluster.messages.views import ClusterView
from cluster.rpc.connection import Connection, ConnectionLost
from cluster.rpc.protocol import EVENTS, HEARD, OPEN_REQUESTS
from router.quarantine.quarantine import MAX_ENGINES_LOST, Quarantine, quarantined
from router.session.fallback_placement import FallbackPlacement

logger = logging.getLogger("baton.scheduling")

PATIENCE_S = 1.0
"""Longer delays requests whenever the Scheduler is replaced, shorter has more of them placed without its knowledge."""
LOOK_INTERVAL_S = 5.0
"""How often an ingress asks who lives, for the time when nobody tells, and lists its open requests, in seconds. Longer
makes both older, shorter costs the Scheduler a view and a list per ingress.
"""
RETRY_INTERVAL_S = 0.1
GRACE_S = 1.0
"""A new Scheduler that knows no worker after so long is right: there is none."""


class SchedulerFailover:
    """The port of router/session/ports.py."""

    def __init__(self, scheduler: SchedulerClient, peers: WorkerConnections, last_resort: FallbackPlacement) -> None:
        self._scheduler = scheduler
        self._peers = peers
        self._last_resort = last_resort
        self._outbox = SchedulerOutbox(IngressId(secrets.token_hex(8)))
        self._quarantine = Quarantine()
        """Of this ingress's own requests, for the time when the Scheduler is away. As long as it is there it alone says
        who is in quarantine: it sees the losses of all ingresses, and lets the neighbours of the reason out earlier.
        """
        self._connection: Connection | None = None
        """Where events are posted. None: the Scheduler is away."""
        scheduler.on_connected = self._on_connected
        scheduler.service.on_post(HEARD, lambda _, through: self._outbox.heard(through))
        scheduler.service.when_closed(self._on_closed)
        self._is_back = asyncio.Event()
        self._away_since = _now()
        self._reached_at: float | None = None
        self._look_now = asyncio.Event()
        self._looking = asyncio.create_task(self._look_forever())

    def close(self) -> None:
        self._looking.cancel()

    async def place(self, request: PlacementRequest) -> Placement | Rejection:
        self._outbox.asks(request)
        began_at = _now()
        answer = await self._ask(request)
        while answer is None:
            if (waits_s := began_at + self._last_resort.outage_wait_s(request) - _now()) > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(waits_s):
                        await self._is_back.wait()
                answer = await self._ask(request)
            else:
                answer = self._place_alone(request)
        if isinstance(answer, Placement):
            self._last_resort.placed(request.request_id, answer.generating)
        return answer

    def tell(self, event: SchedulerEvent) -> None:
        if isinstance(event, RequestClosed):
            self._last_resort.closed(event.request_id)
            if event.is_harmless:
                self._quarantine.clear(event.digest)
        if isinstance(event, EngineLostWith):
            self._quarantine.lost(event.digest, event.worker, event.num_engines_lost, _now())
        message = self._outbox.put(event, _now())
        if self._connection is not None:
            with suppress(ConnectionLost):  # it is said again on the next connection
                self._connection.post(EVENTS, message)

    async def view(self) -> ClusterView:
        """Who is told of a Scheduler that is back finds it back here too. Raises ServingError."""
        view = await self._scheduler.view()
        self._saw(view)
        return view

    def _place_alone(self, request: PlacementRequest) -> Placement | Rejection:
        num_lost = self._quarantine.num_lost(request.digest, _now())
        if num_lost >= MAX_ENGINES_LOST:
            return quarantined()
        if num_lost > request.num_engines_lost:
            request = msgspec.structs.replace(request, num_engines_lost=num_lost)
        return self._last_resort.place(request)

    async def _ask(self, request: PlacementRequest) -> Placement | Rejection | None:
        """None: the Scheduler is away."""
        while await self._is_there():
            try:
                return await self._scheduler.place(request)
            except ConnectionLost:
                self._lost()
        return None

    async def _is_there(self) -> bool:
        """Waits for a Scheduler that has just gone."""
        if not self._is_back.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._away_since + PATIENCE_S):
                    await self._is_back.wait()
        return self._is_back.is_set()

    def _on_connected(self, connection: Connection, address: Address) -> None:
        """The first that the Scheduler hears: the order is what makes the list of open requests exact."""
        self._connection = connection
        open_requests, kept = self._outbox.connected(address.process, _now())
        with suppress(ConnectionLost):
            connection.post(OPEN_REQUESTS, open_requests)
            for message in kept:
                connection.post(EVENTS, message)

    def _on_closed(self, connection: Connection) -> None:
        if connection is self._connection:
            self._connection = None
            self._lost()

    def _list_open(self) -> None:
        if self._connection is not None:
            with suppress(ConnectionLost):
                self._connection.post(OPEN_REQUESTS, self._outbox.open_requests())

    def _lost(self) -> None:
        if self._is_back.is_set():
            self._is_back.clear()
            self._away_since = _now()
            self._look_now.set()
            logger.warning("the Scheduler is away")
        self._reached_at = None

    async def _look_forever(self) -> None:
        while True:
            try:
                self._list_open()
                await self.view()
                if self._is_back.is_set():
                    await self._peers.learn([worker.worker for worker in self._last_resort.workers])
            except ServingError as error:
                if self._connection is None:
                    self._lost()
                else:
                    logger.warning("the Scheduler is slow: %s", error)
            except Exception:  # whatever happened, it must be looked for again
                logger.exception("the Scheduler cannot be looked at")
                self._lost()
            with suppress(TimeoutError):
                is_known = self._is_back.is_set() and self._last_resort.workers
                async with asyncio.timeout(LOOK_INTERVAL_S if is_known else RETRY_INTERVAL_S):
                    await self._look_now.wait()
            self._look_now.clear()

    def _saw(self, view: ClusterView) -> None:
        if self._reached_at is None:
            self._reached_at = _now()
        if view.workers or self._is_back.is_set() or _now() - self._reached_at >= GRACE_S:
            if self._last_resort.workers and not view.workers:
                self._look_now.set()  # a successor may have heard from nobody yet
            self._last_resort.workers = view.workers
            if not self._is_back.is_set():
                self._is_back.set()
                logger.warning("the Scheduler is there, and knows %d workers", len(view.workers))


def _now() -> float:
    return asyncio.get_running_loop().time()

"""The client of the Scheduler, over one connection. It translates the errors of a connection into cluster/errors.py."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from cluster.clients.reconnecting import Reconnecting
from cluster.clients.report_deltas import ReportDeltas
from cluster.errors import WorkerUnreachable
from cluster.messages.ids import Address, WorkerId
from cluster.messages.kv_events import KvEvents
from cluster.messages.operations import DrainAnswer, DrainAsk, SchedulerStatus
from cluster.messages.placement import Placement, PlacementRequest, Rejection
from cluster.messages.quality import WorkerQuarantine
from cluster.messages.reports import ReportReply, WorkerReport
from cluster.messages.scaling import LoadReading, ScalingAsk
from cluster.messages.scheduler_events import WorkerLeft
from cluster.messages.views import ClusterView, QueuedRequest, RosterChange
from cluster.rpc.connection import Connection, ConnectionLost, Service
from cluster.rpc.frames import Method
from cluster.rpc.listener import connect
from cluster.rpc.protocol import (
    DRAIN,
    KV_EVENTS,
    LEAVING,
    LOAD,
    LOCATE,
    PLACE,
    QUARANTINE,
    QUEUE,
    REPLACED,
    REPORT,
    ROSTER,
    STATUS,
    VIEW,
)
from cluster.scheduler_registry import SchedulerRecord

A = TypeVar("A")
R = TypeVar("R")
SCHEDULER_TIMEOUT_S = 5.0
"""Time for one call to the Scheduler, attempts after a lost connection included, in seconds. Then the call raises
WorkerUnreachable. Longer keeps callers waiting while the Scheduler is replaced; shorter fails calls that its successor
would answer.
"""
FOLLOW_S = 10.0
"""Mean time between two looks for a newer Scheduler while this client is connected, in seconds. Each look reads Ray's
key-value store once. Longer keeps a process with a replaced Scheduler that cannot read the store either; shorter asks
the store more often.
"""
_LEAVING_TIMEOUT_S = 0.5
"""Time that a leaving worker has to tell the Scheduler, in seconds. Then the worker leaves without it, and the
Scheduler notices the end of its reports. Longer delays the end of the worker; shorter has the Scheduler place requests
on it longer.
"""
_SCHEDULER_RETRY_S, _LONGEST_RETRY_S = 0.1, 0.5
"""Mean wait before a call is sent again after a lost connection, in seconds: the first one, and the longest one after
waits that have doubled. Longer delays calls after the Scheduler was replaced; shorter looks for the Scheduler more
often, with every worker at once.
"""


class SchedulerClient:
    def __init__(self, find: Callable[[], Awaitable[SchedulerRecord]]) -> None:
        """`find` finds the newest Scheduler, and raises ConnectionLost if there is none."""
        self._find = find
        self._epoch = 0
        """The epoch of the Scheduler that this client is or was connected to. There is no way back to an older one."""
        self._following: asyncio.Task[None] | None = None
        self._link = Reconnecting(self._connect, lambda connection: connection.is_open)
        self._deltas = ReportDeltas()
        self.service = Service()
        """What the Scheduler may send on a connection that this client opened."""
        self.on_connected: Callable[[Connection, Address], None] = _ignore
        """Called with each new connection before anything else is sent on it."""

    def close(self) -> None:
        """Look for no newer Scheduler any more: this process ends."""
        if self._following is not None:
            self._following.cancel()

    async def place(self, request: PlacementRequest) -> Placement | Rejection:
        """Ask for a placement. The answer may take as long as the request waits in the Scheduler's queue. Raises
        ConnectionLost if there is no open connection.
        """
        connection = self._link.opened
        if connection is None:
            raise ConnectionLost("the Scheduler is away")
        return await connection.call(PLACE, request)

    async def say_leaving(self, event: WorkerLeft) -> None:
        """Tell the Scheduler that a worker leaves. Raises WorkerUnreachable."""
        try:
            async with asyncio.timeout(_LEAVING_TIMEOUT_S):
                await (await self._link.open()).call(LEAVING, event)
        except (ConnectionLost, TimeoutError) as error:
            raise WorkerUnreachable("the Scheduler cannot be reached", "scheduler") from error

    async def report(self, report: WorkerReport) -> ReportReply:
        """Raises WorkerUnreachable."""
        delta = self._deltas.delta(report)
        reply = await self._ask(REPORT, delta)
        if reply.wants_standing:  # another process than the last time, or one that had forgotten the worker
            reply = await self._ask(REPORT, self._deltas.whole(delta))
        return self._deltas.reply(reply)

    async def send_kv_events(self, messages: list[KvEvents]) -> None:
        """Send KV events. Raises WorkerUnreachable; the Scheduler may have received some of them."""
        connection = await self._opened()
        if not connection.is_writable:
            raise WorkerUnreachable("the Scheduler does not read", "scheduler")
        try:
            for message in messages:
                connection.post(KV_EVENTS, message)
        except ConnectionLost as error:
            raise WorkerUnreachable("the Scheduler cannot be reached", "scheduler") from error

    async def roster(self, since: int) -> RosterChange:
        """What has changed in the roster since a version. 0 asks for all of it. Raises WorkerUnreachable."""
        return await self._ask(ROSTER, since)

    async def view(self) -> ClusterView:
        return await self._ask(VIEW, None)

    async def queue(self) -> list[QueuedRequest]:
        return await self._ask(QUEUE, None)

    async def quarantine(self, told: WorkerQuarantine) -> None:
        """Raises WorkerUnreachable."""
        await self._ask(QUARANTINE, told)

    async def status(self) -> SchedulerStatus:
        """Raises WorkerUnreachable."""
        return await self._ask(STATUS, None)

    async def drain(self, ask: DrainAsk) -> DrainAnswer:
        """Raises WorkerUnreachable, and what `DrainKeeper.change` raises (router/drain_keeper.py)."""
        return await self._ask(DRAIN, ask)

    async def load(self, ask: ScalingAsk) -> LoadReading:
        """Raises WorkerUnreachable."""
        return await self._ask(LOAD, ask)

    async def address_of(self, worker: WorkerId) -> Address | None:
        return await self._ask(LOCATE, worker)

    async def _opened(self) -> Connection:
        """The connection. Raises WorkerUnreachable."""
        try:
            async with asyncio.timeout(SCHEDULER_TIMEOUT_S):
                return await self._link.open()
        except (ConnectionLost, TimeoutError) as error:
            raise WorkerUnreachable("the Scheduler cannot be reached", "scheduler") from error

    async def _ask(self, method: Method[A, R], argument: A) -> R:
        try:
            async with asyncio.timeout(SCHEDULER_TIMEOUT_S):
                wait_s = _SCHEDULER_RETRY_S
                while True:  # every message of `_ask` may be sent twice
                    try:
                        return await (await self._link.open()).call(method, argument)
                    except ConnectionLost:
                        await asyncio.sleep(wait_s * random.uniform(0.5, 1.5))
                        wait_s = min(2 * wait_s, _LONGEST_RETRY_S)
        except TimeoutError as error:
            raise WorkerUnreachable("the Scheduler cannot be reached", "scheduler") from error

    async def _connect(self) -> Connection:
        found = await self._find()
        if found.epoch < self._epoch:
            raise ConnectionLost("only a Scheduler is known that was replaced")
        connection = await connect(found.address, self.service)
        self._epoch = found.epoch
        self.on_connected(connection, found.address)
        if self._following is None or self._following.done():
            self._following = asyncio.create_task(self._follow())
        return connection

    async def _follow(self) -> None:
        """Leave a Scheduler as soon as there is a newer one, and tell it so."""
        while True:
            await asyncio.sleep(FOLLOW_S * random.uniform(0.5, 1.5))
            try:
                found = await self._find()
            except ConnectionLost:
                continue
            connection = self._link.opened
            if connection is not None and found.epoch > self._epoch:
                with suppress(ConnectionLost):
                    connection.post(REPLACED, found.epoch)
                connection.close()


def _ignore(connection: Connection, address: Address) -> None:
    pass

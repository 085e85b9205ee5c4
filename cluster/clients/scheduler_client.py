"""The Scheduler over a connection.

Translates what can go wrong with a connection into cluster/errors.py.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from cluster.clients.reconnecting import Reconnecting
from cluster.errors import WorkerUnreachable
from cluster.messages.ids import Address, WorkerId
from cluster.messages.kv_events import KvEvents
from cluster.messages.placement import Placement, PlacementRequest, Rejection
from cluster.messages.reports import ReportReply, WorkerReport
from cluster.messages.scheduler_events import WorkerLeft
from cluster.messages.views import ClusterView, QueuedRequest
from cluster.rpc.connection import Connection, ConnectionLost, Method, Service
from cluster.rpc.listener import connect
from cluster.rpc.protocol import (
    KV_EVENTS,
    LEAVING,
    LOCATE,
    PLACE,
    QUEUE,
    REPORT,
    VIEW,
)

A = TypeVar("A")
R = TypeVar("R")
SCHEDULER_TIMEOUT_S = 5.0
"""A call to a Scheduler that is away would wait for its successor."""
_LEAVING_TIMEOUT_S = 0.5
"""How long a worker that leaves tries to say so, in seconds. Its reports end, so the Scheduler finds out anyway."""
_SCHEDULER_RETRY_S = 0.1


class SchedulerClient:
    def __init__(self, locate: Callable[[], Awaitable[Address]]) -> None:
        """`locate` finds the living Scheduler; it may take as long as Serve needs to replace a dead one."""
        self._locate = locate
        self._link = Reconnecting(self._connect, lambda connection: connection.is_open)
        self.service = Service()
        """What the Scheduler may say on a connection that it was found by."""
        self.on_connected: Callable[[Connection, Address], None] = _ignore
        """Called with each new connection before anything else is sent on it."""

    async def place(self, request: PlacementRequest) -> Placement | Rejection:
        """Takes as long as the Scheduler has the request queue. Raises ConnectionLost where none is connected to."""
        connection = self._link.opened
        if connection is None:
            raise ConnectionLost("the Scheduler is away")
        return await connection.call(PLACE, request)

    async def say_leaving(self, event: WorkerLeft) -> None:
        """Raises WorkerUnreachable."""
        try:
            async with asyncio.timeout(_LEAVING_TIMEOUT_S):
                await (await self._link.open()).call(LEAVING, event)
        except (ConnectionLost, TimeoutError) as error:
            raise WorkerUnreachable("the Scheduler cannot be reached", "scheduler") from error

    async def report(self, report: WorkerReport) -> ReportReply:
        return await self._ask(REPORT, report)

    async def send_kv_events(self, messages: list[KvEvents]) -> None:
        """Raises WorkerUnreachable; some of them may have been heard then."""
        connection = await self._opened()
        if not connection.is_writable:
            raise WorkerUnreachable("the Scheduler does not read", "scheduler")
        try:
            for message in messages:
                connection.post(KV_EVENTS, message)
        except ConnectionLost as error:
            raise WorkerUnreachable("the Scheduler cannot be reached", "scheduler") from error

    async def view(self) -> ClusterView:
        return await self._ask(VIEW, None)

    async def queue(self) -> list[QueuedRequest]:
        return await self._ask(QUEUE, None)

    async def address_of(self, worker: WorkerId) -> Address | None:
        return await self._ask(LOCATE, worker)

    async def _opened(self) -> Connection:
        """Raises WorkerUnreachable."""
        try:
            async with asyncio.timeout(SCHEDULER_TIMEOUT_S):
                return await self._link.open()
        except (ConnectionLost, TimeoutError) as error:
            raise WorkerUnreachable("the Scheduler cannot be reached", "scheduler") from error

    async def _ask(self, method: Method[A, R], argument: A) -> R:
        try:
            async with asyncio.timeout(SCHEDULER_TIMEOUT_S):
                while True:  # all of its messages may be said twice
                    try:
                        return await (await self._link.open()).call(method, argument)
                    except ConnectionLost:
                        await asyncio.sleep(_SCHEDULER_RETRY_S)
        except TimeoutError as error:
            raise WorkerUnreachable("the Scheduler cannot be reached", "scheduler") from error

    async def _connect(self) -> Connection:
        address = await self._locate()
        connection = await connect(address, self.service)
        self.on_connected(connection, address)
        return connection


def _ignore(connection: Connection, address: Address) -> None:
    pass

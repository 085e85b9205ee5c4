"""The Scheduler and the workers over connections, as ports of a session (router/ports.py) and otherwise.

Workers are found through the Scheduler and connected to when they are first needed; a connection stays until one side
ends. Translates what can go wrong with a connection into cluster/errors.py.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Generic, TypeVar

from cluster.channel import Connection, ConnectionLost, Method, NobodyThere, Service, connect
from cluster.errors import EngineLost, Overloaded, WorkerFailed, WorkerUnreachable
from cluster.protocol import (
    ANSWER,
    EXTEND,
    FORGET,
    GIVE_BACK,
    KV_EVENTS,
    LEAVING,
    LOCATE,
    PLACE,
    PREFILL,
    QUEUE,
    REDEEM,
    REPORT,
    VIEW,
    WITHDRAW,
    Claim,
    Redeem,
)
from cluster.reports import (
    ClusterView,
    KvEvents,
    QueuedRequest,
    ReportReply,
    WorkerReport,
)
from cluster.types import (
    Address,
    GenerateRequest,
    Placement,
    PlacementRequest,
    Rejection,
    RequestId,
    TokenDelta,
    WorkerId,
    WorkerLeft,
)
from decode.step_stream import StepReader
from kvtransfer.handoff import KVHandoff, PrefillResult
from kvtransfer.lease import Promise, Refusal

A = TypeVar("A")
R = TypeVar("R")

_SCHEDULER_TIMEOUT_S = 5.0
"""A call to a Scheduler that is away would wait for its successor."""
_LEAVING_TIMEOUT_S = 0.5
"""How long a worker that leaves tries to say so, in seconds. Its reports end, so the Scheduler finds out anyway."""
_SCHEDULER_RETRY_S = 0.1
_GONE_TIMEOUT_S = 0.5
"""How long a worker whose connection was lost has to show that it lives, in seconds. The port of a dead process refuses
at once. Longer keeps the requests of a machine that is gone from their next worker, shorter takes no process for dead
that is on a slow network.
"""


class SchedulerPeer:
    def __init__(self, locate: Callable[[], Awaitable[Address]]) -> None:
        """`locate` finds the living Scheduler; it may take as long as Serve needs to replace a dead one."""
        self._locate = locate
        self._link = _Link(self._connect, lambda connection: connection.is_open)
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
            async with asyncio.timeout(_SCHEDULER_TIMEOUT_S):
                return await self._link.open()
        except (ConnectionLost, TimeoutError) as error:
            raise WorkerUnreachable("the Scheduler cannot be reached", "scheduler") from error

    async def _ask(self, method: Method[A, R], argument: A) -> R:
        try:
            async with asyncio.timeout(_SCHEDULER_TIMEOUT_S):
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


class WorkerPeer:
    """One open connection to a worker."""

    def __init__(self, worker: WorkerId, connection: Connection, steps: StepReader) -> None:
        self._worker = worker
        self._steps = steps
        self.connection = connection

    async def call(self, method: Method[A, R], argument: A) -> R:
        """Raises ServingError."""
        try:
            return await self.connection.call(method, argument)
        except ConnectionLost as error:
            raise WorkerUnreachable(f"worker {self._worker} is gone", self._worker) from error

    def generate(self, request: GenerateRequest, handoff: KVHandoff | None) -> AsyncGenerator[TokenDelta, None]:
        return self._steps.read(self.connection, request, handoff)


class Peers:
    """Connections to the workers."""

    def __init__(self, scheduler: SchedulerPeer, max_unread_tokens: int | None = None) -> None:
        """`max_unread_tokens`: how far the reader of a stream may lag (cluster/feed.py)."""
        self._scheduler = scheduler
        self._max_unread_tokens = max_unread_tokens
        self._links: dict[WorkerId, _Link[WorkerPeer]] = {}
        self._addresses: dict[WorkerId, Address] = {}
        """Of workers that may live. A worker keeps its address for life."""

    async def learn(self, workers: Sequence[WorkerId]) -> None:
        """Know where these workers are, and forget the others: they can then be found while the Scheduler is away.
        Raises WorkerUnreachable when it is now.
        """
        live = frozenset(workers)
        self._addresses = {worker: address for worker, address in self._addresses.items() if worker in live}
        for worker in workers:
            if worker not in self._addresses:
                await self._address_of(worker)

    def connected(self, worker: WorkerId) -> WorkerPeer | None:
        """The worker, if its connection is open: what needs it per token is then spared a layer."""
        link = self._links.get(worker)
        return link.opened if link else None

    async def to(self, worker: WorkerId) -> WorkerPeer:
        """Raises WorkerUnreachable; Overloaded when nobody knows where the worker is."""
        link = self._links.get(worker)
        if link is None:
            self._links = {known: link for known, link in self._links.items() if link.opened or link.is_opening}
            link = _Link(lambda: self._connect(worker), lambda peer: peer.connection.is_open)
            self._links[worker] = link
        try:
            return await link.open()
        except ConnectionLost as error:
            if self._links.get(worker) is link:
                del self._links[worker]
            raise WorkerUnreachable(str(error), worker) from error

    async def ready_for(self, request: GenerateRequest, worker: WorkerId) -> WorkerPeer:
        """The worker; for a suspect, once its engine has answered. Raises ServingError."""
        peer = await self.to(worker)
        if request.is_suspect:
            await peer.call(ANSWER, None)
        return peer

    async def lost_with(self, worker: WorkerId) -> WorkerUnreachable:
        """For a request that a worker had when its connection was lost: EngineLost where the worker has ended, and not
        where this process, or the network, stood still for too long.
        """
        try:
            async with asyncio.timeout(_GONE_TIMEOUT_S):
                await self.to(worker)
        except WorkerUnreachable as error:
            if isinstance(error.__cause__, NobodyThere):
                return EngineLost(f"worker {worker} died", worker)
        except (Overloaded, TimeoutError):
            pass
        return WorkerUnreachable(f"the connection to worker {worker} was lost", worker)

    async def _connect(self, worker: WorkerId) -> WorkerPeer:
        try:
            address = self._addresses.get(worker) or await self._address_of(worker)
        except WorkerFailed as error:  # of no worker's making
            raise Overloaded("the Scheduler is away", _SCHEDULER_TIMEOUT_S) from error
        if address is None:
            raise ConnectionLost(f"worker {worker} is not known to the Scheduler")
        steps = StepReader(worker, self.lost_with, self._max_unread_tokens)
        try:
            return WorkerPeer(worker, await connect(address, steps.service), steps)
        except ConnectionLost:
            self._addresses.pop(worker, None)
            raise

    async def _address_of(self, worker: WorkerId) -> Address | None:
        address = await self._scheduler.address_of(worker)
        if address is not None:
            self._addresses[worker] = address
        return address


class PrefillPeers:
    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def prefill(self, worker: WorkerId, request: GenerateRequest) -> PrefillResult | None:
        peer = await self._peers.ready_for(request, worker)
        try:
            return await peer.connection.call(PREFILL, request)
        except ConnectionLost as error:
            raise await self._peers.lost_with(worker) from error

    def withdraw(self, worker: WorkerId, request_id: RequestId) -> None:
        """Without a connection there is nothing to withdraw: its end has withdrawn everything."""
        if peer := self._peers.connected(worker):
            peer.connection.post(WITHDRAW, request_id)

    async def redeem(self, handoff: KVHandoff, decode: WorkerId, digest: bytes) -> Promise | Refusal:
        return await (await self._peers.to(handoff.worker)).call(REDEEM, Redeem(handoff.lease, decode, digest))

    async def extend(self, handoff: KVHandoff, decode: WorkerId) -> Promise | Refusal:
        return await (await self._peers.to(handoff.worker)).call(EXTEND, Claim(handoff.lease, decode))

    def give_back(self, handoff: KVHandoff, decode: WorkerId) -> None:
        if peer := self._peers.connected(handoff.worker):
            peer.connection.post(GIVE_BACK, Claim(handoff.lease, decode))


class DecodePeers:
    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    def generate(
        self, worker: WorkerId, request: GenerateRequest, handoff: KVHandoff | None
    ) -> AsyncGenerator[TokenDelta, None]:
        peer = self._peers.connected(worker)
        if peer is None or request.is_suspect:
            return self._reach_and_generate(worker, request, handoff)
        return peer.generate(request, handoff)

    def distrust(self, worker: WorkerId) -> None:
        if peer := self._peers.connected(worker):
            peer.connection.post(FORGET, None)

    async def _reach_and_generate(
        self, worker: WorkerId, request: GenerateRequest, handoff: KVHandoff | None
    ) -> AsyncGenerator[TokenDelta, None]:
        peer = await self._peers.ready_for(request, worker)
        async with aclosing(peer.generate(request, handoff)) as deltas:
            async for delta in deltas:
                yield delta


class _Link(Generic[R]):
    """Something that is opened when it is first needed, by one attempt for all who wait, and anew once it is closed."""

    def __init__(self, connect: Callable[[], Awaitable[R]], is_open: Callable[[R], bool]) -> None:
        self._connect = connect
        self._is_open = is_open
        self._opened: R | None = None
        self._opening: asyncio.Future[R] | None = None

    @property
    def opened(self) -> R | None:
        return self._opened if self._opened is not None and self._is_open(self._opened) else None

    @property
    def is_opening(self) -> bool:
        return self._opening is not None

    async def open(self) -> R:
        if (opened := self.opened) is not None:
            return opened
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._connect())
            self._opening.add_done_callback(self._settle)
        return await asyncio.shield(self._opening)

    def _settle(self, opening: asyncio.Future[R]) -> None:
        self._opening = None
        if not opening.cancelled() and opening.exception() is None:
            self._opened = opening.result()


def _ignore(connection: Connection, address: Address) -> None:
    pass

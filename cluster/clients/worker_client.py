"""Clients of the workers, as ports of a session (router/session/ports.py) and for other uses.

The Scheduler knows where workers listen. A worker is connected to when it is first needed, and the connection stays
until one side ends. The clients translate the errors of a connection into cluster/errors.py.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

import msgspec

from cluster.clients.reconnecting import Reconnecting
from cluster.clients.scheduler_client import SCHEDULER_TIMEOUT_S, SchedulerClient
from cluster.errors import EngineLost, Overloaded, WorkerFailed, WorkerUnreachable
from cluster.messages.generation import GenerateRequest, TokenDelta
from cluster.messages.ids import Address, RequestId, WorkerId
from cluster.messages.retention import ToolWait
from cluster.rpc.connection import Connection, ConnectionLost, NobodyThere
from cluster.rpc.frames import Method
from cluster.rpc.listener import connect
from cluster.rpc.protocol import (
    ANSWER,
    AWAIT_TOOLS,
    EXTEND,
    FORGET,
    GIVE_BACK,
    PREFILL,
    REDEEM,
    WITHDRAW,
    LeaseClaim,
    Redeem,
)
from cluster.step_stream.ingress_side import StepReader
from cluster.step_stream.unread import UnreadTokens
from cluster.step_stream.way import on_the_way
from kvtransfer.handoff import KVHandoff, PrefillResult, PulledBlocks
from kvtransfer.lease_terms import Promise, Refusal

A = TypeVar("A")
R = TypeVar("R")
_GONE_TIMEOUT_S = 0.5
"""Time in which a worker whose connection was lost must be reached again, in seconds. The port of a dead process
refuses at once: the worker is dead. After the timeout, the worker counts as unreachable, not as dead. Longer delays the
requests of a machine that is gone; shorter misses dead workers on a slow network.
"""


class AddressBook(Protocol):
    """Knows where workers listen. The Scheduler does, for its own workers."""

    async def address_of(self, worker: WorkerId) -> Address | None:
        """None if the worker is not known. Raises WorkerUnreachable."""
        ...


class WorkerConnection:
    """One open connection to a worker."""

    def __init__(self, worker: WorkerId, connection: Connection, steps: StepReader) -> None:
        self._worker = worker
        self._steps = steps
        self.connection = connection

    async def call(self, method: Method[A, R], argument: A) -> R:
        """Call a method of the worker. Raises ServingError."""
        try:
            return await self.connection.call(method, argument)
        except ConnectionLost as error:
            raise WorkerUnreachable(f"worker {self._worker} is gone", self._worker) from error

    def generate(self, request: GenerateRequest, handoff: KVHandoff | None) -> AsyncGenerator[TokenDelta, None]:
        return self._steps.read(self.connection, request, handoff)

    def pause(self, request_id: RequestId) -> None:
        self._steps.pause(self.connection, request_id)


class WorkerConnections:
    """The connections to all workers."""

    def __init__(self, address_book: AddressBook, max_unread_tokens: int | None = None) -> None:
        """`max_unread_tokens` is how far the reader of a stream may lag (cluster/step_stream/buffer.py)."""
        self._address_book = address_book
        self._max_unread_tokens = max_unread_tokens
        self.unread = UnreadTokens()
        """What workers sent for requests that had ended here."""
        self._links: dict[WorkerId, Reconnecting[WorkerConnection]] = {}
        self._addresses: dict[WorkerId, Address] = {}
        """Addresses of workers that may live. A worker keeps its address for life."""
        self._learned: dict[int, dict[WorkerId, Address]] = {}
        """The addresses of each Scheduler's workers, by the id of its client."""

    def learn(self, scheduler: SchedulerClient, addresses: dict[WorkerId, Address]) -> None:
        """Learn where the workers of a Scheduler listen, and forget those that it had before, so that the workers can
        be reached while the Scheduler is away.
        """
        self._learned[id(scheduler)] = addresses
        self._addresses = {worker: address for known in self._learned.values() for worker, address in known.items()}

    def connected(self, worker: WorkerId) -> WorkerConnection | None:
        """The connection to a worker if it is open. A caller that needs the connection per token saves a coroutine."""
        link = self._links.get(worker)
        return link.opened if link else None

    async def to(self, worker: WorkerId) -> WorkerConnection:
        """The connection to a worker. Raises WorkerUnreachable, and Overloaded if the Scheduler is away and the address
        is unknown.
        """
        link = self._links.get(worker)
        if link is None:
            self._links = {known: link for known, link in self._links.items() if link.opened or link.is_opening}
            link = Reconnecting(lambda: self._connect(worker), lambda peer: peer.connection.is_open)
            self._links[worker] = link
        try:
            return await link.open()
        except ConnectionLost as error:
            if self._links.get(worker) is link:
                del self._links[worker]
            raise WorkerUnreachable(str(error), worker) from error

    async def ready_for(self, request: GenerateRequest, worker: WorkerId) -> WorkerConnection:
        """The connection to a worker. For a suspect request, returns after the worker's engine has answered. Raises
        ServingError.
        """
        peer = await self.to(worker)
        if request.is_suspect:
            await peer.call(ANSWER, None)
        return peer

    async def lost_with(self, worker: WorkerId) -> WorkerUnreachable:
        """The error of a request whose worker's connection was lost: EngineLost if the worker has ended, and
        WorkerUnreachable if only this process or the network stopped for too long.
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

    async def _connect(self, worker: WorkerId) -> WorkerConnection:
        try:
            address = self._addresses.get(worker) or await self._address_of(worker)
        except WorkerFailed as error:  # the Scheduler failed, not the worker
            raise Overloaded("the Scheduler is away", SCHEDULER_TIMEOUT_S) from error
        if address is None:
            raise ConnectionLost(f"worker {worker} is not known to the Scheduler")
        steps = StepReader(worker, self.lost_with, self._max_unread_tokens, self.unread)
        try:
            return WorkerConnection(worker, await connect(address, steps.service), steps)
        except ConnectionLost:
            self._addresses.pop(worker, None)
            raise

    async def _address_of(self, worker: WorkerId) -> Address | None:
        address = await self._address_book.address_of(worker)
        if address is not None:
            self._addresses[worker] = address
        return address


class PrefillClient:
    """Calls prefill workers."""

    def __init__(self, peers: WorkerConnections) -> None:
        self._peers = peers

    async def prefill(self, worker: WorkerId, request: GenerateRequest) -> PrefillResult | None:
        asked_at, was_connected = _now(), self._peers.connected(worker) is not None
        peer = await self._peers.ready_for(request, worker)
        sent_at = _now()
        try:
            came_at, result = await peer.connection.call(_TIMED_PREFILL, request)
        except ConnectionLost as error:
            raise await self._peers.lost_with(worker) from error
        if result is None:
            return None
        connect_s = None if was_connected and not request.is_suspect else sent_at - asked_at
        stages = on_the_way(result.first.stages, connect_s=connect_s, came_s=came_at - sent_at)
        return msgspec.structs.replace(result, first=msgspec.structs.replace(result.first, stages=stages))

    def withdraw(self, worker: WorkerId, request_id: RequestId) -> None:
        """Withdraw a prefill. Without an open connection this does nothing: the end of the connection has withdrawn
        everything.
        """
        if peer := self._peers.connected(worker):
            peer.connection.post(WITHDRAW, request_id)

    async def redeem(self, handoff: KVHandoff, decode: WorkerId, digest: bytes) -> Promise | Refusal:
        return await (await self._peers.to(handoff.worker)).call(REDEEM, Redeem(handoff.lease, decode, digest))

    async def extend(self, handoff: KVHandoff, decode: WorkerId) -> Promise | Refusal:
        return await (await self._peers.to(handoff.worker)).call(EXTEND, LeaseClaim(handoff.lease, decode))

    def give_back(self, handoff: KVHandoff, decode: WorkerId) -> None:
        if peer := self._peers.connected(handoff.worker):
            peer.connection.post(GIVE_BACK, LeaseClaim(handoff.lease, decode))


class DecodeClient:
    """Calls workers that generate."""

    def __init__(self, peers: WorkerConnections) -> None:
        self._peers = peers

    def generate(
        self, worker: WorkerId, request: GenerateRequest, handoff: KVHandoff | None
    ) -> AsyncGenerator[TokenDelta, None]:
        peer = self._peers.connected(worker)
        if peer is None or request.is_suspect:
            return self._reach_and_generate(worker, request, handoff)
        return peer.generate(request, handoff)

    def pause(self, worker: WorkerId, request_id: RequestId) -> None:
        if peer := self._peers.connected(worker):
            peer.pause(request_id)

    def await_tools(self, worker: WorkerId, wait: ToolWait) -> None:
        if peer := self._peers.connected(worker):
            peer.connection.post(AWAIT_TOOLS, wait)

    def forget(self, worker: WorkerId, blocks: PulledBlocks | None) -> None:
        if peer := self._peers.connected(worker):
            peer.connection.post(FORGET, blocks)

    async def _reach_and_generate(
        self, worker: WorkerId, request: GenerateRequest, handoff: KVHandoff | None
    ) -> AsyncGenerator[TokenDelta, None]:
        asked_at = _now()
        peer = await self._peers.ready_for(request, worker)
        connect_s = _now() - asked_at
        async with aclosing(peer.generate(request, handoff)) as deltas:
            async for delta in deltas:
                if delta.stages is not None:
                    delta = msgspec.structs.replace(delta, stages=on_the_way(delta.stages, connect_s=connect_s))
                yield delta


class _Timed(Method[A, tuple[float, R]]):
    """A call whose result comes with the time at which it was read, in seconds of the event loop's clock."""

    def __init__(self, method: Method[A, R]) -> None:
        self.name = method.name
        self.decode_argument = method.decode_argument
        self.decode_result: Any = lambda body: (_now(), method.decode_result(body))


_TIMED_PREFILL = _Timed(PREFILL)


def _now() -> float:
    return asyncio.get_running_loop().time()

"""The worker's half of the step stream: how tokens leave a worker.

There is one step stream per connection between an ingress replica and a worker. Each message on it carries everything
that one engine step produced for that ingress replica. The worker's half (`StepStreams`) runs the requests of the
ingress replicas. The ingress's half (cluster/step_stream/ingress_side.py) gives the deltas to the requests. When a
connection ends, the worker stops all generation for the ingress replica, and the ingress fails all requests on the
worker.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol, TypeVar

from cluster.errors import ErrorMessage, ServingError
from cluster.messages.generation import GenerateRequest, TokenDelta
from cluster.messages.ids import RequestId
from cluster.rpc.connection import Connection, ConnectionLost, Service
from cluster.rpc.frames import Method
from cluster.rpc.protocol import START, STEP, STOP, STREAM_FAILED, Start, StreamFailed
from cluster.step_stream.buffer import DeltaBuffer, DeltaSink
from cluster.step_stream.stage_log import StageLog
from kvtransfer.handoff import KVHandoff

logger = logging.getLogger("baton.step_stream")
A = TypeVar("A")
Running = tuple[RequestId, asyncio.Task[None]]
"""A request, and the task that starts it in the engine."""
MAX_STEP_DELTAS = 1024
"""Most deltas in one message. Deltas with logprobs are large and are not merged. More makes larger messages, up to the
limit of a frame; fewer sends more messages.
"""
FAILED = "the worker failed on this request"
"""The error message of an unexpected exception. The exception's own text goes to the worker's log only."""


class GeneratingEngine(Protocol):
    """The part of an engine that the step stream needs."""

    async def start(self, request: GenerateRequest, handoff: KVHandoff | None, sink: DeltaSink) -> None:
        """Start a generation. Raises ServingError."""
        ...

    async def stop(self, request_id: RequestId) -> None:
        """End a generation and forget it. Does nothing if it is not running."""
        ...


class StepStreams:
    """The worker's half of the step stream, for all connections. `flush` must be called after each engine step."""

    def __init__(self, engine: GeneratingEngine, service: Service) -> None:
        self._engine = engine
        self._writers: dict[Connection, _Writer] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._sent: asyncio.Future[None] | None = None
        service.on_post(START, self._start)
        service.on_post(STOP, self._stop)
        service.when_closed(self._closed)
        service.on_writable = self._flush_one

    def flush(self) -> None:
        for writer in self._writers.values():
            writer.flush()
        self._say_sent()

    async def drained(self) -> None:
        """Wait until everything that the engine has produced is sent."""
        while any(writer.is_waiting for writer in self._writers.values()):
            self._sent = asyncio.get_running_loop().create_future()
            await self._sent

    def _start(self, connection: Connection, start: Start) -> None:
        writer = self._writers.get(connection)
        if writer is None:
            self._writers[connection] = writer = _Writer(connection)
        stages = StageLog(asyncio.get_running_loop().time())
        sink = _Sink(writer, start.stream, start.request.num_sequences, self._end, stages)
        task = asyncio.create_task(self._run(start, writer, sink))
        writer.streams[start.stream] = (start.request.request_id, task)

    async def _run(self, start: Start, writer: "_Writer", sink: "_Sink") -> None:
        """A request that the engine refuses is not ended there: its id may be that of another one, which runs."""
        try:
            await self._engine.start(start.request, start.handoff, sink)
        except ServingError as error:
            writer.fail(start.stream, error)
        except Exception as error:
            logger.exception("request %s could not be started", start.request.request_id)
            writer.fail(start.stream, error)

    def _stop(self, connection: Connection, stream: int) -> None:
        writer = self._writers.get(connection)
        if writer is not None and (running := writer.streams.pop(stream, None)) is not None:
            self._end(*running)

    def _closed(self, connection: Connection) -> None:
        writer = self._writers.pop(connection, None)
        for running in writer.streams.values() if writer else ():
            self._end(*running)
        self._say_sent()

    def _end(self, request_id: RequestId, starting: asyncio.Task[None]) -> None:
        task = asyncio.create_task(self._end_in_engine(request_id, starting))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end_in_engine(self, request_id: RequestId, starting: asyncio.Task[None]) -> None:
        starting.cancel()
        await asyncio.wait([starting])
        await self._engine.stop(request_id)

    def _flush_one(self, connection: Connection) -> None:
        if writer := self._writers.get(connection):
            writer.flush()
        self._say_sent()

    def _say_sent(self) -> None:
        if self._sent is not None and not self._sent.done():
            self._sent.set_result(None)


class _Writer:
    """What was produced for one connection and is not sent yet. The engine's own output loop calls it, so no error of a
    connection may leave it.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._buffer = DeltaBuffer()
        self.streams: dict[int, Running] = {}

    @property
    def is_waiting(self) -> bool:
        """Whether deltas wait for the peer to read."""
        return bool(self._buffer) and self._connection.is_open

    def put(self, stream: int, delta: TokenDelta) -> None:
        self._buffer.put(stream, delta)

    def fail(self, stream: int, error: BaseException) -> Running | None:
        """End a stream with an error. Returns what ran for it; None if the stream had ended."""
        self._send_all()  # even if the peer does not read: an error must not overtake the tokens before it
        serving = error if isinstance(error, ServingError) else ServingError(FAILED)
        running = self.streams.pop(stream, None)
        if running is not None:
            self._post(STREAM_FAILED, StreamFailed(stream, ErrorMessage.of(serving)))
        return running

    def flush(self) -> None:
        if self._connection.is_writable:
            self._send_all()

    def _send_all(self) -> None:
        if not self._buffer or not self._connection.is_open:
            return
        deltas = self._buffer.take()
        for start in range(0, len(deltas), MAX_STEP_DELTAS):
            if not self._post(STEP, deltas[start : start + MAX_STEP_DELTAS]):
                return

    def _post(self, method: Method[A, None], argument: A) -> bool:
        """Send a message. False if the peer does not get it: then the connection ends, and with it its requests
        (`StepStreams._closed`).
        """
        try:
            self._connection.post(method, argument)
        except ConnectionLost:  # a peer that resets its connection is noticed by any of the writes to it
            return False
        except Exception as error:
            logger.error("closing a connection whose messages cannot be sent: %r", error)
            self._connection.close()
            return False
        return True


class _Sink:
    """One stream, as the engine sees it."""

    __slots__ = ("_end", "_num_open", "_stream", "_writer", "stages")

    def __init__(
        self,
        writer: _Writer,
        stream: int,
        num_sequences: int,
        end: Callable[[RequestId, asyncio.Task[None]], None],
        stages: StageLog,
    ) -> None:
        """`end`: ends a request in the engine, which may still run parts of a request that failed."""
        self.stages = stages
        self._writer = writer
        self._stream = stream
        self._num_open = num_sequences
        self._end = end

    def put(self, delta: TokenDelta) -> None:
        self._writer.put(self._stream, delta)
        if delta.finish_reason is not None:
            self._num_open -= 1
            if not self._num_open:
                self._writer.streams.pop(self._stream, None)

    def fail(self, error: BaseException) -> None:
        if (running := self._writer.fail(self._stream, error)) is not None:
            self._end(*running)

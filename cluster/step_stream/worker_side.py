"""The worker's half of the step stream: how tokens leave a worker.

There is one step stream per connection between an ingress replica and a worker. Each message on it carries everything
that one engine step produced for that ingress replica. The worker's half (`StepStreams`) runs the requests of the
ingress replicas. The ingress's half (cluster/step_stream/ingress_side.py) gives the deltas to the requests. When a
connection ends, the worker stops all generation for the ingress replica, and the ingress fails all requests on the
worker.
"""

import asyncio
import logging
from typing import Protocol

from cluster.errors import ErrorMessage, ServingError
from cluster.messages.generation import GenerateRequest, TokenDelta
from cluster.messages.ids import RequestId
from cluster.rpc.connection import Connection, Service
from cluster.rpc.protocol import START, STEP, STOP, STREAM_FAILED, Start, StreamFailed
from cluster.step_stream.buffer import DeltaBuffer, DeltaSink
from kvtransfer.handoff import KVHandoff

logger = logging.getLogger("baton.step_stream")
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
        sink = _Sink(writer, start.stream, start.request.num_sequences)
        task = asyncio.create_task(self._run(start, sink))
        writer.streams[start.stream] = (start.request.request_id, task)

    async def _run(self, start: Start, sink: "_Sink") -> None:
        try:
            await self._engine.start(start.request, start.handoff, sink)
        except ServingError as error:
            sink.fail(error)
        except Exception as error:
            logger.exception("request %s could not be started", start.request.request_id)
            sink.fail(error)

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
    """What was produced for one connection and is not sent yet."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._buffer = DeltaBuffer()
        self.streams: dict[int, tuple[RequestId, asyncio.Task[None]]] = {}

    @property
    def is_waiting(self) -> bool:
        """Whether deltas wait for the peer to read."""
        return bool(self._buffer) and self._connection.is_open

    def put(self, stream: int, delta: TokenDelta) -> None:
        self._buffer.put(stream, delta)

    def fail(self, stream: int, error: BaseException) -> None:
        self._send_all()  # even if the peer does not read: an error must not overtake the tokens before it
        serving = error if isinstance(error, ServingError) else ServingError(FAILED)
        if self.streams.pop(stream, None) is not None and self._connection.is_open:
            self._connection.post(STREAM_FAILED, StreamFailed(stream, ErrorMessage.of(serving)))

    def flush(self) -> None:
        if self._connection.is_writable:
            self._send_all()

    def _send_all(self) -> None:
        """Send all deltas. The engine's own output loop calls this, so no error of a connection may leave it."""
        if not self._buffer or not self._connection.is_open:
            return
        deltas = self._buffer.take()
        try:
            for start in range(0, len(deltas), MAX_STEP_DELTAS):
                self._connection.post(STEP, deltas[start : start + MAX_STEP_DELTAS])
        except ServingError as error:
            logger.error("closing a connection whose tokens cannot be sent: %s", error)
            self._connection.close()


class _Sink:
    """One stream, as the engine sees it."""

    __slots__ = ("_num_open", "_stream", "_writer")

    def __init__(self, writer: _Writer, stream: int, num_sequences: int) -> None:
        self._writer = writer
        self._stream = stream
        self._num_open = num_sequences

    def put(self, delta: TokenDelta) -> None:
        self._writer.put(self._stream, delta)
        if delta.finish_reason is not None:
            self._num_open -= 1
            if not self._num_open:
                self._writer.streams.pop(self._stream, None)

    def fail(self, error: BaseException) -> None:
        self._writer.fail(self._stream, error)

"""The ingress's half of the step stream. The worker's half is cluster/step_stream/worker_side.py."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable

import msgspec

from cluster.errors import RequestPaused, WorkerUnreachable
from cluster.messages.generation import GenerateRequest, TokenDelta
from cluster.messages.ids import RequestId, WorkerId
from cluster.rpc.connection import Connection, ConnectionLost, Service
from cluster.rpc.protocol import START, STEP, STOP, STREAM_FAILED, Start, StreamFailed
from cluster.step_stream.buffer import TokenBuffer
from cluster.step_stream.unread import UnreadTokens
from cluster.step_stream.way import on_the_way
from kvtransfer.handoff import KVHandoff


class StepReader:
    """The ingress's half of the step stream, for one connection to a worker."""

    def __init__(
        self,
        worker: WorkerId,
        lost_with: Callable[[WorkerId], Awaitable[WorkerUnreachable]],
        max_unread_tokens: int | None = None,
        unread: UnreadTokens | None = None,
    ) -> None:
        """`lost_with` finds out what became of a worker whose connection was lost while it had requests.
        `max_unread_tokens` is how far the reader of a stream may lag before the stream fails
        (cluster/step_stream/buffer.py). `unread` counts what comes for readers that are gone.
        """
        self._worker = worker
        self._lost_with = lost_with
        self._max_unread_tokens = max_unread_tokens
        self._unread = unread or UnreadTokens()
        self._buffers: dict[int, TokenBuffer] = {}
        self._by_request: dict[RequestId, int] = {}
        """The numbers of the streams, by request."""
        self._sent_at: dict[int, float] = {}
        """When the request of each stream was sent, in seconds of the event loop's clock."""
        self._numbers = itertools.count()
        self.service = Service()
        """The service for the connection to the worker."""
        self.service.on_post(STEP, self._on_step)
        self.service.on_post(STREAM_FAILED, self._on_stream_failed)
        self.service.when_closed(self._on_closed)

    async def read(
        self, connection: Connection, request: GenerateRequest, handoff: KVHandoff | None
    ) -> AsyncGenerator[TokenDelta, None]:
        """Start a request and give its deltas. Closing the generator stops the request.

        Raises:
            ServingError: The error of the worker. WorkerUnreachable if the worker cannot be reached, EngineLost if the
                worker died while it had the request, ClientTooSlow if the reader lagged too far, RequestPaused after
                `pause`.
        """
        stream = next(self._numbers)
        buffer = TokenBuffer(request.num_sequences, self._max_unread_tokens)
        buffer.on_overflow = lambda: self._send_stop(connection, stream)
        self._buffers[stream] = buffer
        self._by_request[request.request_id] = stream
        self._sent_at[stream] = _now()
        num_read = 0
        try:
            try:
                connection.post(START, Start(stream, request, handoff))
            except ConnectionLost as error:
                raise WorkerUnreachable(f"worker {self._worker} is gone", self._worker) from error
            while batch := await buffer.next():
                for delta in batch:
                    num_read += len(delta.token_ids)
                    yield delta
        except ConnectionLost as error:
            raise await self._lost_with(self._worker) from error
        finally:
            del self._buffers[stream], self._sent_at[stream]
            if self._by_request.get(request.request_id) == stream:
                del self._by_request[request.request_id]
            if not buffer.is_finished:
                self._send_stop(connection, stream)
            if buffer.num_put > num_read:
                self._unread.add(self._worker, buffer.num_put - num_read)

    def pause(self, connection: Connection, request_id: RequestId) -> None:
        """Stop a request. The reader of its stream gets what has come so far, and then RequestPaused. Does nothing for
        a request without an open stream.
        """
        stream = self._by_request.get(request_id)
        buffer = self._buffers.get(stream) if stream is not None else None
        if stream is not None and buffer is not None and not buffer.is_finished:
            self._send_stop(connection, stream)
            buffer.fail(RequestPaused("the request is paused", self._worker))

    def _send_stop(self, connection: Connection, stream: int) -> None:
        if connection.is_open:
            connection.post(STOP, stream)

    def _on_step(self, connection: Connection, deltas: list[tuple[int, TokenDelta]]) -> None:
        for stream, delta in deltas:
            if (buffer := self._buffers.get(stream)) is not None:
                buffer.put(delta if delta.stages is None else self._timed(stream, delta))
            elif delta.token_ids:
                self._unread.add(self._worker, len(delta.token_ids))

    def _timed(self, stream: int, delta: TokenDelta) -> TokenDelta:
        """The first delta of a sequence, with the time at which it came."""
        came_s = _now() - self._sent_at[stream]
        return msgspec.structs.replace(delta, stages=on_the_way(delta.stages, came_s=came_s))

    def _on_stream_failed(self, connection: Connection, failed: StreamFailed) -> None:
        if (buffer := self._buffers.get(failed.stream)) is not None:
            buffer.fail(failed.error.to_error())

    def _on_closed(self, connection: Connection) -> None:
        for buffer in self._buffers.values():
            buffer.fail(ConnectionLost(f"the connection to worker {self._worker} was lost"))


def _now() -> float:
    return asyncio.get_running_loop().time()

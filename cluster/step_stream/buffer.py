"""A request's token deltas between the engine that produces them step by step and the reader that takes them when it
can.

A reader that lags gets fewer and larger deltas, not a longer queue. A reader that lags too far loses its request.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from cluster.errors import ClientTooSlow
from cluster.messages.generation import TokenDelta
from cluster.step_stream.stage_log import StageLog


class DeltaSink(Protocol):
    """Where an engine puts what it produces for one request."""

    @property
    def stages(self) -> StageLog:
        """What is measured of the request until its first token, with which it leaves."""
        ...

    def put(self, delta: TokenDelta) -> None: ...

    def fail(self, error: BaseException) -> None:
        """The engine will put nothing more: it died, or refused the request."""
        ...


class DeltaBuffer:
    """Deltas of many streams, in order per sequence. Deltas of one sequence are merged while they wait."""

    __slots__ = ("_deltas", "_last", "num_tokens")

    def __init__(self) -> None:
        self._deltas: list[tuple[int, TokenDelta]] = []
        self._last: dict[tuple[int, int], int] = {}
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._deltas)

    def put(self, stream: int, delta: TokenDelta) -> None:
        key = (stream, delta.sequence)
        last = self._last.get(key)
        merged = None if last is None else merge(self._deltas[last][1], delta)
        if last is None or merged is None:
            self._last[key] = len(self._deltas)
            self._deltas.append((stream, delta))
        else:
            self._deltas[last] = (stream, merged)
        self.num_tokens += len(delta.token_ids)

    def take(self) -> list[tuple[int, TokenDelta]]:
        """Return all deltas with their streams, and empty the buffer."""
        deltas, self._deltas = self._deltas, []
        self._last.clear()
        self.num_tokens = 0
        return deltas


def merge(first: TokenDelta, second: TokenDelta) -> TokenDelta | None:
    """Merge two consecutive deltas of one sequence. Returns None if one of them has logprobs, which are opaque per
    step.
    """
    if first.logprobs is not None or second.logprobs is not None:
        return None
    return msgspec.structs.replace(
        second,
        token_ids=first.token_ids + second.token_ids,
        prompt_sources=first.prompt_sources or second.prompt_sources,
        top_logprobs=first.top_logprobs or second.top_logprobs,
        stages=first.stages or second.stages,
    )


def merged(deltas: Sequence[TokenDelta]) -> TokenDelta:
    """Merge deltas of one sequence, in order and without logprobs, into one."""
    first, *rest = deltas
    for delta in rest:
        first = merge(first, delta) or delta
    return first


class TokenBuffer:
    """The deltas of one request, for one reader."""

    def __init__(self, num_sequences: int, max_unread_tokens: int | None = None, received_at: float = 0.0) -> None:
        """`max_unread_tokens` is how far the reader may lag. Beyond it, `put` fails the buffer with ClientTooSlow.
        `received_at`: when a worker got the request that its engine puts the deltas of here.
        """
        self.stages = StageLog(received_at)
        self._num_open = num_sequences
        self._max_unread_tokens = max_unread_tokens
        self._buffer = DeltaBuffer()
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.on_overflow: Callable[[], None] | None = None
        self.num_put = 0
        """Tokens that have come, read or not, and also after the end."""

    @property
    def is_finished(self) -> bool:
        """Whether every sequence has ended or the buffer has failed. Nothing more will come."""
        return not self._num_open or self._error is not None

    def put(self, delta: TokenDelta) -> None:
        self.num_put += len(delta.token_ids)
        if self.is_finished:
            return
        self._buffer.put(0, delta)
        self._num_open -= delta.finish_reason is not None
        if self._max_unread_tokens is not None and self._buffer.num_tokens > self._max_unread_tokens:
            self._overflow()
        self._wake()

    def fail(self, error: BaseException) -> None:
        """The reader gets what has come so far, and then `error`. Does nothing if the buffer is finished."""
        if not self.is_finished:
            self._error = error
            self._wake()

    async def next(self) -> list[TokenDelta]:
        """Wait for deltas, and take all that have come. Returns an empty list once every sequence has ended. Raises the
        error that `fail` was called with.
        """
        while not self._buffer:
            if self._error is not None:
                raise self._error
            if not self._num_open:
                return []
            await self._something()
        return [delta for _, delta in self._buffer.take()]

    async def _something(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _overflow(self) -> None:
        if not self.is_finished and self.on_overflow is not None:
            self.on_overflow()
        unread = self._buffer.num_tokens
        self.fail(ClientTooSlow(f"the client lags {unread} tokens behind and reads too slowly"))

"""Chat completions on their way to PostgreSQL: written one after the other, and once it is back where it was away."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from typing import Any

import msgspec

from api.completions.assembly import Assembly
from api.completions.request import StoredRequest
from api.state.chat_completions import ChatCompletion
from api.state.chat_state import ChatState
from api.wire.sse import DONE
from cluster.errors import StateUnavailable

logger = logging.getLogger("baton.completions")

WRITTEN_WITHIN_S = 2.0
"""A client waits so long for its completion to be written, and none while PostgreSQL is known to be away."""
RETRY_S = 1.0
KEPT_FOR_S = 600.0
MAX_WAITING_BYTES = 64 << 20
"""What PostgreSQL has not taken by then, or what is more, is lost."""


class _Waiting:
    def __init__(self, tenant: str, completion: ChatCompletion, until: float) -> None:
        self.tenant = tenant
        self.completion = completion
        self.until = until
        self.size = len(completion.body) + len(completion.messages)
        self.needs_no_wait = asyncio.Event()
        """It is written, or lost, or PostgreSQL is away."""


class Keeper:
    def __init__(self, state: ChatState) -> None:
        self._state = state
        self._waiting: deque[_Waiting] = deque()
        self._num_bytes = 0
        self._is_away = False
        self._writing: asyncio.Task[None] | None = None

    def put(self, tenant: str, completion: ChatCompletion) -> asyncio.Event:
        """To be written. The event: a client that is told now finds it, if PostgreSQL is there."""
        waiting = _Waiting(tenant, completion, asyncio.get_running_loop().time() + KEPT_FOR_S)
        if self._num_bytes + waiting.size > MAX_WAITING_BYTES:
            logger.error("chat completion %s is lost: too many wait for PostgreSQL", completion.id)
            waiting.needs_no_wait.set()
            return waiting.needs_no_wait
        self._waiting.append(waiting)
        self._num_bytes += waiting.size
        if self._is_away:
            waiting.needs_no_wait.set()
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_all())
        return waiting.needs_no_wait

    async def drained(self) -> None:
        """Wait for what is to be written."""
        if self._writing is not None:
            await asyncio.wait([self._writing])

    async def _write_all(self) -> None:
        now = asyncio.get_running_loop().time
        while self._waiting:
            first = self._waiting[0]
            self._is_away = not await self._is_done_with(first)
            if self._is_away and now() < first.until:
                for waiting in self._waiting:
                    waiting.needs_no_wait.set()
                await asyncio.sleep(RETRY_S)
                continue
            if self._is_away:
                logger.error("chat completion %s is lost: PostgreSQL was away too long", first.completion.id)
            self._waiting.popleft()
            self._num_bytes -= first.size
            first.needs_no_wait.set()

    async def _is_done_with(self, waiting: _Waiting) -> bool:
        """False while PostgreSQL is away."""
        try:
            await self._state.stores.chat_completions.add(waiting.tenant, waiting.completion)
        except StateUnavailable:
            return False
        except Exception:
            logger.exception("chat completion %s is lost", waiting.completion.id)
        return True


class Keeping:
    """One request whose chat completion is stored: with its answer, before the client hears that it is over."""

    def __init__(self, keeper: Keeper, tenant: str, body: dict[str, Any], tier: str) -> None:
        """Raises InvalidRequest."""
        self._keeper = keeper
        self._tenant = tenant
        self._tier = tier
        self._request = StoredRequest(body, datetime.now(UTC))

    @property
    def body(self) -> dict[str, Any]:
        """What is to be answered."""
        return self._request.body

    async def whole(self, completion: dict[str, Any]) -> dict[str, Any]:
        """For the client."""
        await _written(self._keeper.put(self._tenant, self._request.completed(completion)))
        return completion | {"metadata": self._request.metadata}

    async def passed_on(self, frames: AsyncGenerator[str | bytes, None]) -> AsyncGenerator[str | bytes, None]:
        """For the client. One that has not ended, because it failed or its client left, is not kept."""
        assembly, kept = Assembly(), None
        try:
            async with aclosing(frames):
                async for frame in frames:
                    if frame == DONE:
                        break
                    chunk = _chunk_in(frame)
                    assembly.take(chunk)
                    if not (self._request.hides_usage and chunk.get("choices") == []):
                        yield frame
        finally:
            if assembly.is_whole:
                completion = assembly.completion() | {"service_tier": self._tier}
                kept = self._keeper.put(self._tenant, self._request.completed(completion))
        if kept is not None:
            await _written(kept)
        yield DONE


async def _written(kept: asyncio.Event) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(WRITTEN_WITHIN_S):
            await kept.wait()


def _chunk_in(frame: str | bytes) -> dict[str, Any]:
    chunk: dict[str, Any] = msgspec.json.decode((frame.encode() if isinstance(frame, str) else frame)[len("data: ") :])
    return chunk

"""Stores chat completions in PostgreSQL. Those of a tenant are written one after another, and wait while PostgreSQL is
away. A client whose request succeeds finds its chat completion, unless PostgreSQL was away.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from typing import Any

import msgspec

from api.completions.stored_request import StoredRequest
from api.state.lifecycle import ChatState
from api.state.postgres.stores.chat_completions import ChatCompletion
from api.wire.completions.assembly import Assembly
from api.wire.sse import DONE
from cluster.errors import InvalidRequest, ServingError, StateUnavailable

logger = logging.getLogger("baton.completions")

WRITTEN_WITHIN_S = 2.0
"""How long a client waits for its chat completion to be written, in seconds. While PostgreSQL is known to be away, no
client waits. Shorter answers more clients before the write; longer stalls clients while PostgreSQL is slow.
"""
RETRY_S = 1.0
"""The time between two tries while PostgreSQL is away, in seconds. Shorter costs more CPU; longer writes later."""
KEPT_FOR_S = 600.0
"""How long a chat completion waits for PostgreSQL before it is lost, in seconds. Shorter loses more in an outage;
longer takes memory for longer.
"""
MAX_WAITING_BYTES = 64 << 20
"""Bytes that may wait for PostgreSQL. More takes memory; less refuses requests sooner while PostgreSQL is slow."""
LARGEST_SHARE = 4
"""The divisor of MAX_WAITING_BYTES that gives the most one tenant may fill. A smaller divisor lets a tenant store more
at once; a larger one leaves more room to other tenants.
"""
RETRY_AFTER_S = 5.0
"""The Retry-After of a request without room, in seconds. Shorter brings more requests that are refused again; longer
leaves room unused.
"""


class _Waiting:
    """A chat completion that waits to be written."""

    def __init__(self, tenant: str, completion: ChatCompletion, until: float) -> None:
        self.tenant = tenant
        self.completion = completion
        self.until = until
        self.size = len(completion.body) + len(completion.messages)
        self.needs_no_wait = asyncio.Event()
        """The client need not wait any more: the chat completion is written or refused, or PostgreSQL is away."""
        self.refusal: ServingError | None = None
        """Why the chat completion will never be written. None if it may still be."""


class _Queue:
    """The waiting chat completions of one tenant."""

    def __init__(self) -> None:
        self.waiting: deque[_Waiting] = deque()
        self.num_bytes = 0
        self.is_away = False
        """PostgreSQL has failed the last write of this tenant."""
        self.writing: asyncio.Task[None] | None = None

    def add(self, waiting: _Waiting) -> None:
        self.waiting.append(waiting)
        self.num_bytes += waiting.size
        if self.is_away:
            waiting.needs_no_wait.set()

    def remove_first(self) -> None:
        first = self.waiting.popleft()
        self.num_bytes -= first.size
        first.needs_no_wait.set()


class CompletionStoreWriter:
    """Each tenant has a queue and a share of the memory, so that no tenant waits for another one."""

    def __init__(self, state: ChatState) -> None:
        self._state = state
        self._queues: dict[str, _Queue] = {}
        """The queues that are not empty, by tenant."""
        self._has_room = asyncio.Condition()

    @property
    def max_item_bytes(self) -> int:
        return self._state.max_item_bytes

    def check_room(self, tenant: str, num_bytes: int) -> None:
        """Check before a request is answered that its chat completion can wait. Raises StateUnavailable."""
        if not self._fits(tenant, num_bytes):
            raise _no_room()

    def put(self, tenant: str, completion: ChatCompletion) -> _Waiting:
        """Queue a chat completion. Raises StateUnavailable if it has no room."""
        waiting = _Waiting(tenant, completion, asyncio.get_running_loop().time() + KEPT_FOR_S)
        self.check_room(tenant, waiting.size)
        queue = self._queues.setdefault(tenant, _Queue())
        queue.add(waiting)
        if queue.writing is None:
            queue.writing = asyncio.create_task(self._write_all(tenant, queue))
        return waiting

    async def keep(self, tenant: str, completion: ChatCompletion) -> None:
        """Store a chat completion. Returns when it is written, or when its client need not wait any more. Raises
        ServingError if it will not be stored.
        """
        try:
            async with asyncio.timeout(WRITTEN_WITHIN_S):
                waiting = await self._put_when_there_is_room(tenant, completion)
        except TimeoutError as error:
            raise _no_room() from error
        with suppress(TimeoutError):
            async with asyncio.timeout(WRITTEN_WITHIN_S):
                await waiting.needs_no_wait.wait()
        if waiting.refusal is not None:
            raise waiting.refusal

    async def drained(self) -> None:
        """Wait until all queues are empty."""
        while writing := [queue.writing for queue in self._queues.values() if queue.writing]:
            await asyncio.gather(*writing)

    async def _put_when_there_is_room(self, tenant: str, completion: ChatCompletion) -> _Waiting:
        size = len(completion.body) + len(completion.messages)
        async with self._has_room:
            await self._has_room.wait_for(lambda: self._fits(tenant, size))
            return self.put(tenant, completion)

    def _fits(self, tenant: str, size: int) -> bool:
        """Whether a chat completion has room. The first one of a tenant may exceed the tenant's share."""
        room = MAX_WAITING_BYTES - sum(queue.num_bytes for queue in self._queues.values())
        if (queue := self._queues.get(tenant)) is None:
            return size <= room or not self._queues
        return size <= min(room, MAX_WAITING_BYTES // LARGEST_SHARE - queue.num_bytes)

    async def _write_all(self, tenant: str, queue: _Queue) -> None:
        while queue.waiting:
            first = queue.waiting[0]
            queue.is_away = not await self._is_settled(first)
            if queue.is_away and asyncio.get_running_loop().time() < first.until:
                for waiting in queue.waiting:
                    waiting.needs_no_wait.set()
                await asyncio.sleep(RETRY_S)
                continue
            if queue.is_away:
                logger.error("chat completion %s is lost: PostgreSQL was away for too long", first.completion.id)
            queue.remove_first()
            if not queue.waiting:
                del self._queues[tenant]
            async with self._has_room:
                self._has_room.notify_all()

    async def _is_settled(self, waiting: _Waiting) -> bool:
        """Try to write a chat completion. False while PostgreSQL is away."""
        try:
            await self._state.stores.chat_completions.add(waiting.tenant, waiting.completion)
        except StateUnavailable:
            return False
        except InvalidRequest as error:
            waiting.refusal = error
        except Exception:
            logger.exception("chat completion %s is lost", waiting.completion.id)
            waiting.refusal = ServingError("the chat completion could not be stored")
        return True


class StoredAnswer:
    """The answer to one request with `store`: it is stored before the client sees its end."""

    def __init__(self, store_writer: CompletionStoreWriter, tenant: str, body: dict[str, Any], tier: str) -> None:
        """Raises InvalidRequest, StateUnavailable."""
        self._store_writer = store_writer
        self._tenant = tenant
        self._tier = tier
        self._request = StoredRequest(body, datetime.now(UTC), store_writer.max_item_bytes)
        store_writer.check_room(tenant, self._request.num_bytes)

    @property
    def body(self) -> dict[str, Any]:
        """The request that is to be answered."""
        return self._request.body

    async def whole(self, completion: dict[str, Any]) -> dict[str, Any]:
        """Store a chat completion. Returns it as the client gets it. Raises ServingError if it is not stored."""
        await self._store_writer.keep(self._tenant, self._request.completed(completion))
        return completion | {"metadata": self._request.metadata}

    async def passed_on(self, frames: AsyncGenerator[str | bytes, None]) -> AsyncGenerator[str | bytes, None]:
        """The frames for the client. The chat completion that they make is stored before the last frame. A failure to
        store it raises ServingError. A chat completion that has not ended, because it failed or its client left, is not
        stored.
        """
        assembly, has_passed_all = Assembly(), False
        try:
            async with aclosing(frames):
                async for frame in frames:
                    if frame == DONE:
                        break
                    chunk = _chunk_in(frame)
                    assembly.take(chunk)
                    if not (self._request.hides_usage and chunk.get("choices") == []):
                        yield frame
            has_passed_all = True
        finally:
            if (
                assembly.is_whole and not has_passed_all
            ):  # the client left after the answer, before the end of the frames
                with suppress(StateUnavailable):
                    self._store_writer.put(self._tenant, self._completed(assembly))
        if assembly.is_whole:
            await self._store_writer.keep(self._tenant, self._completed(assembly))
        yield DONE

    def _completed(self, assembly: Assembly) -> ChatCompletion:
        return self._request.completed(assembly.completion() | {"service_tier": self._tier})


def _no_room() -> StateUnavailable:
    return StateUnavailable("too many chat completions of this tenant wait to be stored", RETRY_AFTER_S)


def _chunk_in(frame: str | bytes) -> dict[str, Any]:
    chunk: dict[str, Any] = msgspec.json.decode((frame.encode() if isinstance(frame, str) else frame)[len("data: ") :])
    return chunk

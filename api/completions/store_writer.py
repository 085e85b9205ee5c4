"""Chat completions on their way to PostgreSQL: written one after the other, each tenant's in turn, and
once it is back where it was away. Who is told that its completion is stored will find it."""

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
"""A client waits so long for its completion to be written, and none while PostgreSQL is known to be away."""
RETRY_S = 1.0
KEPT_FOR_S = 600.0
"""What PostgreSQL has not taken by then is lost: it was away for all that time."""
MAX_WAITING_BYTES = 64 << 20
"""That wait for PostgreSQL. More takes memory; less refuses to store sooner while PostgreSQL is slow."""
LARGEST_SHARE = 4
"""One of so many parts of it is the most that a tenant may fill."""
RETRY_AFTER_S = 5.0


class _Waiting:
    def __init__(self, tenant: str, completion: ChatCompletion, until: float) -> None:
        self.tenant = tenant
        self.completion = completion
        self.until = until
        self.size = len(completion.body) + len(completion.messages)
        self.needs_no_wait = asyncio.Event()
        """It is written, or refused, or PostgreSQL is away."""
        self.refusal: ServingError | None = None
        """Why it will never be written."""


class _Queue:
    """Of a tenant: written one after the other."""

    def __init__(self) -> None:
        self.waiting: deque[_Waiting] = deque()
        self.num_bytes = 0
        self.is_away = False
        """PostgreSQL, for this tenant."""
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
    """Each tenant has a queue and a share of the memory. None of them waits for another one."""

    def __init__(self, state: ChatState) -> None:
        self._state = state
        self._queues: dict[str, _Queue] = {}
        """Of tenants for whom something waits."""
        self._has_room = asyncio.Condition()

    @property
    def max_item_bytes(self) -> int:
        return self._state.max_item_bytes

    def check_room(self, tenant: str, num_bytes: int) -> None:
        """For a request that is to be stored, before it is answered. Raises StateUnavailable."""
        if not self._fits(tenant, num_bytes):
            raise _no_room()

    def put(self, tenant: str, completion: ChatCompletion) -> _Waiting:
        """To be written. Raises StateUnavailable where there is no room for it now."""
        waiting = _Waiting(tenant, completion, asyncio.get_running_loop().time() + KEPT_FOR_S)
        self.check_room(tenant, waiting.size)
        queue = self._queues.setdefault(tenant, _Queue())
        queue.add(waiting)
        if queue.writing is None:
            queue.writing = asyncio.create_task(self._write_all(tenant, queue))
        return waiting

    async def keep(self, tenant: str, completion: ChatCompletion) -> None:
        """Its client finds it then, if PostgreSQL is there. Raises ServingError where it will not be stored."""
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
        """Wait for what is to be written."""
        while writing := [queue.writing for queue in self._queues.values() if queue.writing]:
            await asyncio.gather(*writing)

    async def _put_when_there_is_room(self, tenant: str, completion: ChatCompletion) -> _Waiting:
        size = len(completion.body) + len(completion.messages)
        async with self._has_room:
            await self._has_room.wait_for(lambda: self._fits(tenant, size))
            return self.put(tenant, completion)

    def _fits(self, tenant: str, size: int) -> bool:
        """A tenant's share is there for the first one in any case, however large it is."""
        room = MAX_WAITING_BYTES - sum(queue.num_bytes for queue in self._queues.values())
        if (queue := self._queues.get(tenant)) is None:
            return size <= room or not self._queues
        return size <= min(room, MAX_WAITING_BYTES // LARGEST_SHARE - queue.num_bytes)

    async def _write_all(self, tenant: str, queue: _Queue) -> None:
        while queue.waiting:
            first = queue.waiting[0]
            queue.is_away = not await self._is_done_with(first)
            if queue.is_away and asyncio.get_running_loop().time() < first.until:
                for waiting in queue.waiting:
                    waiting.needs_no_wait.set()
                await asyncio.sleep(RETRY_S)
                continue
            if queue.is_away:
                logger.error("chat completion %s is lost: PostgreSQL was away too long", first.completion.id)
            queue.remove_first()
            if not queue.waiting:
                del self._queues[tenant]
            async with self._has_room:
                self._has_room.notify_all()

    async def _is_done_with(self, waiting: _Waiting) -> bool:
        """False while PostgreSQL is away."""
        try:
            await self._state.stores.chat_completions.add(waiting.tenant, waiting.completion)
        except StateUnavailable:
            return False
        except InvalidRequest as error:
            waiting.refusal = error
        except Exception:
            logger.exception("chat completion %s is lost", waiting.completion.id)
            waiting.refusal = ServingError("the answer could not be stored")
        return True


class Keeping:
    """One request whose chat completion is stored: with its answer, before the client hears that it is over."""

    def __init__(self, keeper: CompletionStoreWriter, tenant: str, body: dict[str, Any], tier: str) -> None:
        """Raises InvalidRequest, StateUnavailable."""
        self._keeper = keeper
        self._tenant = tenant
        self._tier = tier
        self._request = StoredRequest(body, datetime.now(UTC), keeper.max_item_bytes)
        keeper.check_room(tenant, self._request.num_bytes)

    @property
    def body(self) -> dict[str, Any]:
        """What is to be answered."""
        return self._request.body

    async def whole(self, completion: dict[str, Any]) -> dict[str, Any]:
        """For the client. Raises ServingError where it is not stored."""
        await self._keeper.keep(self._tenant, self._request.completed(completion))
        return completion | {"metadata": self._request.metadata}

    async def passed_on(self, frames: AsyncGenerator[str | bytes, None]) -> AsyncGenerator[str | bytes, None]:
        """For the client, with an error at the end where it is not stored. One that has not ended, because it failed or
        its client left, is not kept.
        """
        assembly, is_told = Assembly(), False
        try:
            async with aclosing(frames):
                async for frame in frames:
                    if frame == DONE:
                        break
                    chunk = _chunk_in(frame)
                    assembly.take(chunk)
                    if not (self._request.hides_usage and chunk.get("choices") == []):
                        yield frame
            is_told = True
        finally:
            if assembly.is_whole and not is_told:  # its client left before the end of the frames
                with suppress(StateUnavailable):
                    self._keeper.put(self._tenant, self._completed(assembly))
        if assembly.is_whole:
            await self._keeper.keep(self._tenant, self._completed(assembly))
        yield DONE

    def _completed(self, assembly: Assembly) -> ChatCompletion:
        return self._request.completed(assembly.completion() | {"service_tier": self._tier})


def _no_room() -> StateUnavailable:
    return StateUnavailable("too many chat completions of this API key wait to be stored", RETRY_AFTER_S)


def _chunk_in(frame: str | bytes) -> dict[str, Any]:
    chunk: dict[str, Any] = msgspec.json.decode((frame.encode() if isinstance(frame, str) else frame)[len("data: ") :])
    return chunk

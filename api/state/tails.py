"""Live tails: the last events of a response that is being generated, for whoever follows it from another replica.

Redis passes sealed batches on at once and keeps the last ones for a while. What is missing there is in PostgreSQL:
followers come back to it whenever a tail ends.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

import msgspec
from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from api.state.volatile import TIMEOUT_S, Volatile

MAX_BATCHES = 1000
"""Kept of a response."""
KEPT_S = 600
MAX_LAG = 1000
"""Batches that a follower may lag behind."""
SILENCE_S = 5.0
"""A tail that is silent for so long ends: its writer may have lost Redis, or be lost itself."""

_PUBLISH = """
redis.pcall('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], ARGV[2], 'batch', ARGV[3]) -- refused when it is there already
redis.call('EXPIRE', KEYS[1], ARGV[4])
redis.call('PUBLISH', KEYS[1], ARGV[3])
"""


class Batch(NamedTuple):
    """Consecutive events of a response."""

    seq_from: int
    seq_to: int
    key_version: int
    sealed: bytes


Queue = asyncio.Queue[bytes | None]
"""Of a follower: batches, and None when there will be no more."""


class Tails:
    def __init__(self, volatile: Volatile) -> None:
        self._volatile = volatile
        self._channels = _Channels(volatile)

    async def publish(self, batches: list[tuple[str, str, Batch]]) -> None:
        """Of many responses (tenant, response, batch) in one round trip. What PostgreSQL has refused must not be."""
        commands = [
            (
                "EVAL",
                _PUBLISH,
                1,
                _name(tenant, response),
                MAX_BATCHES,
                f"{batch.seq_to + 1}-0",
                msgspec.msgpack.encode(batch),
                KEPT_S,
            )
            for tenant, response, batch in batches
        ]
        await self._volatile.run(*commands)

    async def follow(self, tenant: str, response: str, after: int) -> AsyncGenerator[Batch, None]:
        """The batches with what comes after this event, without a gap, as they are published. Ends when the next one
        is not to be had here: then look into PostgreSQL, and come back.
        """
        name = _name(tenant, response)
        async with self._channels.joined(name) as queue:
            if queue is None:
                return
            kept = await self._volatile.run(("XRANGE", name, f"({after + 1}-0", "+"))
            if kept is None:
                return
            waiting = deque(fields[b"batch"] for _, fields in kept[0])
            while encoded := waiting.popleft() if waiting else await _next(queue):
                batch = msgspec.msgpack.decode(encoded, type=Batch)
                if batch.seq_from > after + 1:
                    return
                if batch.seq_to > after:
                    yield batch
                    after = batch.seq_to

    async def close(self) -> None:
        await self._channels.close()


class _Channels:
    """One connection listens for all followers of this process."""

    def __init__(self, volatile: Volatile) -> None:
        self._volatile = volatile
        self._followers: dict[str, set[Queue]] = defaultdict(set)
        self._unconfirmed: deque[asyncio.Future[None]] = deque()
        """Redis confirms in the order in which it was asked."""
        self._unsent: asyncio.Queue[tuple[str, asyncio.Future[None] | None]] = asyncio.Queue()
        """Names to subscribe to, with whom to tell; and names that somebody has left."""
        self._listening: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def joined(self, name: str) -> AsyncIterator[Queue | None]:
        """What is published from now on; None when Redis is away."""
        queue: Queue = asyncio.Queue(MAX_LAG)
        self._followers[name].add(queue)
        try:
            yield queue if await self._is_subscribed(name) else None
        finally:
            self._followers[name].discard(queue)
            if not self._followers[name]:
                del self._followers[name]
                self._unsent.put_nowait((name, None))

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])

    async def _is_subscribed(self, name: str) -> bool:
        if self._listening is None or self._listening.done():
            pubsub = self._volatile.listener()
            if pubsub is None:
                return False
            self._listening = asyncio.create_task(self._listen(pubsub))
        confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unsent.put_nowait((name, confirmed))
        await asyncio.wait([confirmed], timeout=TIMEOUT_S)
        if not confirmed.done():
            self._listening.cancel()  # what it listens to, it does not hear
        return confirmed.done() and not confirmed.cancelled()

    async def _listen(self, pubsub: PubSub) -> None:
        try:
            await pubsub.connect()  # type: ignore[no-untyped-call]
            async with asyncio.TaskGroup() as both:
                both.create_task(self._send(pubsub))
                both.create_task(self._hear(pubsub))
        except* (RedisError, OSError):
            pass  # the stores say that Redis is away
        finally:
            self._end_all()
            await pubsub.aclose()  # type: ignore[no-untyped-call]

    async def _send(self, pubsub: PubSub) -> None:
        while True:
            name, confirmed = await self._unsent.get()
            is_wanted = name in self._followers
            if is_wanted and confirmed is not None:
                self._unconfirmed.append(confirmed)
                await pubsub.subscribe(name)
            elif not is_wanted:
                await pubsub.unsubscribe(name)

    async def _hear(self, pubsub: PubSub) -> None:
        while True:
            message = await pubsub.get_message(timeout=None)
            if message["type"] == "message":
                self._pass_on(message["channel"].decode(), message["data"])
            elif message["type"] == "subscribe" and not (confirmed := self._unconfirmed.popleft()).done():
                confirmed.set_result(None)

    def _pass_on(self, name: str, batch: bytes | None) -> None:
        for queue in self._followers.get(name, ()):
            with suppress(asyncio.QueueFull):  # its follower finds a gap
                queue.put_nowait(batch)

    def _end_all(self) -> None:
        for name in self._followers:
            self._pass_on(name, None)
        while not self._unsent.empty():
            _, confirmed = self._unsent.get_nowait()
            if confirmed is not None:
                self._unconfirmed.append(confirmed)
        while self._unconfirmed:
            self._unconfirmed.popleft().cancel()


async def _next(queue: Queue) -> bytes | None:
    try:
        return await asyncio.wait_for(queue.get(), SILENCE_S)
    except TimeoutError:
        return None


def _name(tenant: str, response: str) -> str:
    return f"baton:tail:{tenant}:{response}"

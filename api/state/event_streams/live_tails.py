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

from api.state.redis.client import TIMEOUT_S, RedisClient

MAX_BATCHES = 1000
"""Kept of a response."""
KEPT_S = 600
MAX_LAG_BYTES = 4 << 20
"""That a follower may lag behind. More lets slow followers take the memory of a replica, less sends those of long log
probabilities to PostgreSQL more often.
"""
SILENCE_S = 5.0
"""A tail that is silent for so long ends: its writer may have lost Redis, or be lost itself."""

_PUBLISH = """
redis.pcall('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], ARGV[2], 'batch', ARGV[3]) -- refused when it is there already
redis.call('EXPIRE', KEYS[1], ARGV[4])
redis.call('PUBLISH', KEYS[1], ARGV[3])
"""


class TailEvents(NamedTuple):
    """Consecutive events of a response."""

    seq_from: int
    seq_to: int
    key_version: int
    sealed: bytes


class Queue:
    """Of a follower: batches, and None when there will be no more. What it has no room for is left out: its follower
    finds the gap.
    """

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._num_bytes = 0

    def put(self, batch: bytes | None) -> None:
        num_bytes = len(batch or b"")
        if batch is None or not self._num_bytes or self._num_bytes + num_bytes <= MAX_LAG_BYTES:
            self._num_bytes += num_bytes
            self._waiting.put_nowait(batch)

    async def get(self) -> bytes | None:
        batch = await self._waiting.get()
        self._num_bytes -= len(batch or b"")
        return batch


class LiveTails:
    def __init__(self, volatile: RedisClient) -> None:
        self._volatile = volatile
        self._channels = _Channels(volatile)

    async def publish(self, batches: list[tuple[str, str, TailEvents]]) -> None:
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

    async def follow(self, tenant: str, response: str, after: int) -> AsyncGenerator[TailEvents, None]:
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
                batch = msgspec.msgpack.decode(encoded, type=TailEvents)
                if batch.seq_from > after + 1:
                    return
                if batch.seq_to > after:
                    yield batch
                    after = batch.seq_to

    async def close(self) -> None:
        await self._channels.close()


class _Channels:
    """One connection listens for all followers of this process."""

    def __init__(self, volatile: RedisClient) -> None:
        self._volatile = volatile
        self._followers: dict[str, set[Queue]] = defaultdict(set)
        self._ear: _Ear | None = None

    @asynccontextmanager
    async def joined(self, name: str) -> AsyncIterator[Queue | None]:
        """What is published from now on; None when Redis is away."""
        queue = Queue()
        self._followers[name].add(queue)
        ear = self._opened()
        try:
            yield queue if ear is not None and await ear.listens_to(name) else None
        finally:
            self._followers[name].discard(queue)
            if not self._followers[name]:
                del self._followers[name]
                if ear is not None:
                    ear.forget(name)

    async def close(self) -> None:
        if self._ear is not None:
            self._ear.hang_up()
            await asyncio.wait([self._ear.listening])

    def _opened(self) -> "_Ear | None":
        if self._ear is None or self._ear.listening.done():
            pubsub = self._volatile.listener()
            self._ear = None if pubsub is None else _Ear(pubsub, self._followers)
        return self._ear


class _Ear:
    """One connection, until it is lost. Two tasks have it to themselves, so that no follower that is cancelled leaves
    it in the middle of something.
    """

    def __init__(self, pubsub: PubSub, followers: dict[str, set[Queue]]) -> None:
        self._pubsub = pubsub
        self._followers = followers
        self._asked: asyncio.Queue[tuple[str, asyncio.Future[None] | None] | None] = asyncio.Queue()
        """Names to listen to, with whom to tell; names that somebody has left; None to hang up."""
        self._unconfirmed: deque[asyncio.Future[None]] = deque()
        """Redis confirms in the order in which it was asked."""
        self.listening = asyncio.create_task(self._listen())

    async def listens_to(self, name: str) -> bool:
        confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked.put_nowait((name, confirmed))
        await asyncio.wait([confirmed, self.listening], timeout=TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        if not confirmed.done():
            self.hang_up()
        return confirmed.done()

    def forget(self, name: str) -> None:
        """Unless it is followed again by then."""
        self._asked.put_nowait((name, None))

    def hang_up(self) -> None:
        self._asked.put_nowait(None)

    async def _listen(self) -> None:
        hearing: asyncio.Task[None] | None = None
        try:
            await self._pubsub.connect()  # type: ignore[no-untyped-call]
            hearing = asyncio.create_task(self._hear())
            hearing.add_done_callback(lambda _: self.hang_up())
            while asked := await self._asked.get():
                await self._ask(*asked)
        except (RedisError, OSError):
            pass  # the stores say that Redis is away
        finally:
            if hearing is not None:
                hearing.cancel()
            for name in self._followers:
                self._pass_on(name, None)
            await self._pubsub.aclose()  # type: ignore[no-untyped-call]

    async def _ask(self, name: str, confirmed: asyncio.Future[None] | None) -> None:
        is_followed = name in self._followers
        if is_followed and confirmed is not None:
            self._unconfirmed.append(confirmed)
            await self._pubsub.subscribe(name)
        elif not is_followed:
            await self._pubsub.unsubscribe(name)

    async def _hear(self) -> None:
        with suppress(RedisError, OSError):
            while True:
                message = await self._pubsub.get_message(timeout=None)
                if message["type"] == "message":
                    self._pass_on(message["channel"].decode(), message["data"])
                elif message["type"] == "subscribe":
                    self._unconfirmed.popleft().set_result(None)

    def _pass_on(self, name: str, batch: bytes | None) -> None:
        for queue in self._followers.get(name, ()):
            queue.put(batch)


async def _next(queue: Queue) -> bytes | None:
    try:
        async with asyncio.timeout(SILENCE_S):
            return await queue.get()
    except TimeoutError:
        return None


def _name(tenant: str, response: str) -> str:
    return f"baton:tail:{tenant}:{response}"

"""Subscriptions to channels of Redis. One connection listens for all subscribers of this process."""

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from api.state.redis.client import TIMEOUT_S, RedisClient

MAX_LAG_BYTES = 4 << 20
"""Bytes that a subscriber may lag behind. More lets slow subscribers take the memory of a replica; fewer makes them
miss messages sooner, so that they read PostgreSQL more often.
"""


class MessageQueue:
    """The messages that a subscriber has not taken yet. None is the last one: there will be no more. A message that the
    queue has no room for is dropped, so the subscriber must notice a gap by itself.
    """

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._num_bytes = 0

    def put(self, message: bytes | None) -> None:
        num_bytes = len(message or b"")
        if message is None or not self._num_bytes or self._num_bytes + num_bytes <= MAX_LAG_BYTES:
            self._num_bytes += num_bytes
            self._waiting.put_nowait(message)

    async def get(self) -> bytes | None:
        message = await self._waiting.get()
        self._num_bytes -= len(message or b"")
        return message


class Subscriptions:
    def __init__(self, redis: RedisClient) -> None:
        self._redis = redis
        self._subscribers: dict[str, set[MessageQueue]] = defaultdict(set)
        """The queues of the subscribers, by channel."""
        self._connection: _Connection | None = None

    @asynccontextmanager
    async def to(self, channel: str) -> AsyncIterator[MessageQueue | None]:
        """The messages that are published from now on; None if Redis is away."""
        queue = MessageQueue()
        self._subscribers[channel].add(queue)
        connection = self._opened()
        try:
            yield queue if connection is not None and await connection.subscribe(channel) else None
        finally:
            self._subscribers[channel].discard(queue)
            if not self._subscribers[channel]:
                del self._subscribers[channel]
                if connection is not None:
                    connection.unsubscribe(channel)

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            await asyncio.wait([self._connection.running])

    def _opened(self) -> "_Connection | None":
        if self._connection is None or self._connection.running.done():
            pubsub = self._redis.listener()
            self._connection = None if pubsub is None else _Connection(pubsub, self._subscribers)
        return self._connection


class _Connection:
    """One connection to Redis, until it is lost. Only its two tasks use it, so that a subscriber that is cancelled
    cannot leave it in the middle of a command.
    """

    def __init__(self, pubsub: PubSub, subscribers: dict[str, set[MessageQueue]]) -> None:
        self._pubsub = pubsub
        self._subscribers = subscribers
        self._orders: asyncio.Queue[tuple[str, asyncio.Future[None] | None] | None] = asyncio.Queue()
        """Channels to subscribe to, each with the future of its confirmation; channels that a subscriber has left, each
        with None; and None to close.
        """
        self._unconfirmed: deque[asyncio.Future[None]] = deque()
        """The futures of subscriptions that Redis has not confirmed. Redis confirms in the order of the commands."""
        self.running = asyncio.create_task(self._run())

    async def subscribe(self, channel: str) -> bool:
        """False if Redis does not confirm the subscription in time."""
        confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._orders.put_nowait((channel, confirmed))
        await asyncio.wait([confirmed, self.running], timeout=TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        if not confirmed.done():
            self.close()
        return confirmed.done()

    def unsubscribe(self, channel: str) -> None:
        """No-op if the channel has a subscriber again when its turn comes."""
        self._orders.put_nowait((channel, None))

    def close(self) -> None:
        self._orders.put_nowait(None)

    async def _run(self) -> None:
        receiving: asyncio.Task[None] | None = None
        try:
            await self._pubsub.connect()  # type: ignore[no-untyped-call]
            receiving = asyncio.create_task(self._receive())
            receiving.add_done_callback(lambda _: self.close())
            while order := await self._orders.get():
                await self._carry_out(*order)
        except (RedisError, OSError):
            pass  # RedisClient logs that Redis is away
        finally:
            if receiving is not None:
                receiving.cancel()
            for channel in self._subscribers:
                self._pass_on(channel, None)
            await self._pubsub.aclose()  # type: ignore[no-untyped-call]

    async def _carry_out(self, channel: str, confirmed: asyncio.Future[None] | None) -> None:
        has_subscribers = channel in self._subscribers
        if has_subscribers and confirmed is not None:
            self._unconfirmed.append(confirmed)
            await self._pubsub.subscribe(channel)
        elif not has_subscribers:
            await self._pubsub.unsubscribe(channel)

    async def _receive(self) -> None:
        with suppress(RedisError, OSError):
            while True:
                message = await self._pubsub.get_message(timeout=None)
                if message["type"] == "message":
                    self._pass_on(message["channel"].decode(), message["data"])
                elif message["type"] == "subscribe":
                    self._unconfirmed.popleft().set_result(None)

    def _pass_on(self, channel: str, message: bytes | None) -> None:
        for queue in self._subscribers.get(channel, ()):
            queue.put(message)

"""Live tails: the last events of a response that is being generated, for clients that read it from another replica.

Redis passes sealed batches on at once and keeps the last ones for a while. PostgreSQL has every event that is missing
in Redis: a reader looks there whenever a tail ends.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import NamedTuple

import msgspec

from api.state.redis.client import RedisClient
from api.state.redis.subscriptions import MessageQueue, Subscriptions

MAX_BATCHES = 1000
"""Batches that Redis keeps of a response. More takes memory of Redis; fewer sends more readers to PostgreSQL."""
KEPT_S = 600
"""How long Redis keeps the batches of a response after its last batch, in seconds. Longer takes memory of Redis;
shorter sends more readers to PostgreSQL.
"""
SILENCE_S = 5.0
"""How long a tail may be silent before it ends, in seconds: its writer may be lost, or may have lost Redis. Shorter
makes the readers of slow responses look into PostgreSQL more often; longer finds a lost writer later.
"""

_PUBLISH = """
redis.pcall('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], ARGV[2], 'batch', ARGV[3]) -- Redis refuses a batch that it has
redis.call('EXPIRE', KEYS[1], ARGV[4])
redis.call('PUBLISH', KEYS[1], ARGV[3])
"""


class TailEvents(NamedTuple):
    """Consecutive events of a response."""

    seq_from: int
    seq_to: int
    key_version: int
    sealed: bytes


class LiveTails:
    def __init__(self, redis: RedisClient) -> None:
        self._redis = redis
        self._subscriptions = Subscriptions(redis)

    async def publish(self, batches: list[tuple[str, str, TailEvents]]) -> None:
        """Publish batches of many responses, each given as tenant, response and batch, in one round trip. Only batches
        that PostgreSQL has stored may be published.
        """
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
        await self._redis.run(*commands)

    async def follow(self, tenant: str, response: str, after: int) -> AsyncGenerator[TailEvents, None]:
        """The batches with the events after event `after`, without a gap, as they are published. It ends when Redis
        does not have the next batch: the reader then finds its events in PostgreSQL, and may follow again.
        """
        name = _name(tenant, response)
        async with self._subscriptions.to(name) as queue:
            if queue is None:
                return
            kept = await self._redis.run(("XRANGE", name, f"({after + 1}-0", "+"))
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
        await self._subscriptions.close()


async def _next(queue: MessageQueue) -> bytes | None:
    try:
        async with asyncio.timeout(SILENCE_S):
            return await queue.get()
    except TimeoutError:
        return None


def _name(tenant: str, response: str) -> str:
    return f"baton:tail:{tenant}:{response}"

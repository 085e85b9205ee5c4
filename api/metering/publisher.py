"""Publishes new rows of the ledger, each at least once: from the outbox, which is written with the row.

A subscriber tells a row that comes twice by its `id` and `attempt`. Rows that nobody could be given for too long are
dropped from the outbox, the oldest first. The ledger keeps them.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

import msgspec

from api.state.postgres.ledger.ledger_jobs import PUBLISHER_LOCK, LedgerJobs
from api.state.redis.client import RedisClient
from api.state.redis.usage_stream import STREAM

logger = logging.getLogger("baton.metering")

MAX_STREAM = 100_000
"""Rows that the stream keeps, or a few more. More takes memory of Redis, 1 kB each or so; fewer loses rows for a
subscriber that was away.
"""
MAX_STREAM_BYTES = 64 << 20
"""Bytes of Redis's memory that the stream takes, plus one transaction's rows. Texts of clients make a row up to 5 kB
long. More takes memory that limits and responses need; less lets long rows push others out sooner.
"""
MAX_OUTBOX = 1_000_000
"""Rows of the outbox. More takes disk while nothing can be published; fewer drops rows sooner."""
PUBLISHED_AT_ONCE = 200
"""Rows of one transaction, and commands of one round trip to Redis. More is faster; fewer publishes fewer rows twice
after a failure, and takes Redis less time, which has 0.25 s for all of them.
"""
PUBLISH_TIMEOUT_S = 10.0
"""How long a publisher may take for the rows of one transaction, in seconds. Shorter publishes twice what a slow
receiver took; longer keeps a transaction and a connection of PostgreSQL for longer.
"""


class Publisher(Protocol):
    async def publish(self, events: Sequence[bytes]) -> bool:
        """Publish rows in their order, each as JSON. True only when the receiver has them: they then leave the outbox.
        False if some were not published; all are given again. It is cancelled after PUBLISH_TIMEOUT_S, and the rows
        are given again.
        """
        ...

    async def close(self) -> None:
        """Called once, when nothing is published any more."""
        ...


class StreamPublisher:
    """Publishes to the stream of Redis (api/state/redis/usage_stream.py)."""

    def __init__(self, redis: RedisClient) -> None:
        self._redis = redis

    async def publish(self, events: Sequence[bytes]) -> bool:
        commands = [("XADD", STREAM, "MAXLEN", "~", MAX_STREAM, "*", "row", event) for event in events]
        if await self._redis.run(*commands) is None:
            return False
        await self._trim()
        return True

    async def close(self) -> None:
        """The client is closed by whoever has made it."""

    async def _trim(self) -> None:
        """Redis bounds a stream by its rows alone."""
        found = await self._redis.run(("MEMORY", "USAGE", STREAM, "SAMPLES", 0), ("XLEN", STREAM))
        if found is not None and (size := found[0] or 0) > MAX_STREAM_BYTES:
            await self._redis.run(("XTRIM", STREAM, "MAXLEN", found[1] * MAX_STREAM_BYTES // size))


class OutboxJob:
    def __init__(self, jobs: LedgerJobs, publisher: Publisher) -> None:
        self._jobs = jobs
        self._publisher = publisher

    async def run(self) -> int:
        """Publish what is in the outbox, unless another process is at it. Returns the number of rows that have left it.
        Raises StateUnavailable.
        """
        number = 0
        while (published := await self._publish_some()) == PUBLISHED_AT_ONCE:
            number += published
        return number + published

    async def _publish_some(self) -> int:
        async with self._jobs.alone(PUBLISHER_LOCK) as transaction:
            if transaction is None:
                return 0
            if dropped := await self._jobs.trim_outbox(transaction, MAX_OUTBOX):
                logger.error("%d rows of usage were not published in time, and are not published any more", dropped)
            rows = await self._jobs.unpublished(transaction, PUBLISHED_AT_ONCE)
            numbers = [row.pop("number") for row in rows]
            events = [msgspec.json.encode(row) for row in rows if row["id"] is not None]
            if events and not await self._is_published(events):
                return 0
            if dead := len(rows) - len(events):
                logger.error("%d rows of usage are not published: the ledger has them no longer", dead)
            await self._jobs.published(transaction, numbers)
            return len(rows)

    async def _is_published(self, events: Sequence[bytes]) -> bool:
        try:
            async with asyncio.timeout(PUBLISH_TIMEOUT_S):
                return await self._publisher.publish(events)
        except TimeoutError:
            logger.error("rows of usage were not published in %g s, and are published later", PUBLISH_TIMEOUT_S)
            return False

    async def close(self) -> None:
        await self._publisher.close()

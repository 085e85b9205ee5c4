"""The client of Redis, which may be away and may forget: no caller waits for it for long, or depends on an answer."""

import asyncio
import logging
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError

logger = logging.getLogger("baton.state")

TIMEOUT_S = 0.25
"""How long Redis may take to answer before it counts as away, in seconds. Shorter takes a busy Redis for a lost one;
longer delays requests while Redis is away.
"""
ASK_AGAIN_S = 1.0
"""The time between two tries while Redis is away, in seconds. Shorter delays more requests; longer finds a Redis later
that is back.
"""
MAX_AT_ONCE = 200
"""Calls that share a round trip. More makes fewer round trips; fewer makes each of them shorter."""

Command = tuple[str | bytes | int, ...]
Call = tuple[tuple[Command, ...], asyncio.Future[list[Any] | None]]


class RedisClient:
    """Calls that come at the same time share a round trip, on one connection."""

    def __init__(self) -> None:
        self._redis: Redis | None = None
        self._is_away = False
        self._not_before = 0.0
        self._calls: list[Call] = []
        self._working: asyncio.Task[None] | None = None

    def reach(self, url: str) -> None:
        """Use this Redis, unless one is in use already. The connection is made at the first call. Raises ValueError for
        an invalid URL.
        """
        if self._redis is None:
            self._redis = Redis.from_url(
                url,
                protocol=2,
                socket_timeout=TIMEOUT_S,
                socket_connect_timeout=TIMEOUT_S,
                retry=Retry(NoBackoff(), 0),
            )

    async def close(self) -> None:
        if self._working is not None:
            await asyncio.wait([self._working])
        if self._redis is not None:
            await self._redis.aclose()

    async def run(self, *commands: Command) -> list[Any] | None:
        """The answers to these commands. None if Redis is away, or refuses one of them."""
        redis = self._unless_away()
        if redis is None:
            return None
        answers: asyncio.Future[list[Any] | None] = asyncio.get_running_loop().create_future()
        self._calls.append((commands, answers))
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work(redis))
        return await answers

    def listener(self) -> PubSub | None:
        """A connection for subscriptions; None while Redis is away."""
        redis = self._unless_away()
        return None if redis is None else redis.pubsub()

    def _unless_away(self) -> Redis | None:
        return self._redis if asyncio.get_running_loop().time() >= self._not_before else None

    async def _work(self, redis: Redis) -> None:
        """Runs in a task that no caller cancels, so that a connection is never left in the middle of an answer."""
        while self._calls:
            calls, self._calls = self._calls[:MAX_AT_ONCE], self._calls[MAX_AT_ONCE:]
            found = await self._round_trip(redis, [command for commands, _ in calls for command in commands])
            if found is None:
                calls, self._calls = calls + self._calls, []
            rest = iter(found or ())
            for commands, answers in calls:
                own = None if found is None else _unless_refused([next(rest) for _ in commands])
                if not answers.done():  # done: its caller was cancelled
                    answers.set_result(own)

    async def _round_trip(self, redis: Redis, commands: list[Command]) -> list[Any] | None:
        try:
            async with redis.pipeline(transaction=False) as pipeline:
                for command in commands:
                    pipeline.execute_command(*command)
                answers = await pipeline.execute(raise_on_error=False)
        except Exception as error:  # every failure must end the wait of the callers
            self._lose(error)
            return None
        if self._is_away:
            self._is_away = False
            logger.warning("Redis is back")
        return answers

    def _lose(self, error: Exception) -> None:
        self._not_before = asyncio.get_running_loop().time() + ASK_AGAIN_S
        if not self._is_away:
            self._is_away = True
            logger.warning("Redis is away, Baton goes on without it: %s", str(error) or type(error).__name__)


def _unless_refused(answers: list[Any]) -> list[Any] | None:
    for answer in answers:
        if isinstance(answer, ResponseError):
            logger.warning("Redis has refused a command: %s", answer)
            return None
    return answers

"""Redis as the stores see it: a help that may be away, and that may forget. Nobody waits for it for long."""

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
"""A Redis that does not answer for so long is away."""
RETRY_AFTER_S = 1.0
"""While it is away, nobody asks it more often."""
MAX_AT_ONCE = 200
"""Calls that share a round trip."""

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
        """From now on; connects when it is asked. Raises ValueError for what is no URL."""
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
        """Their answers. None when Redis is away, or refuses one of them."""
        redis = self._unless_away()
        if redis is None:
            return None
        answers: asyncio.Future[list[Any] | None] = asyncio.get_running_loop().create_future()
        self._calls.append((commands, answers))
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work(redis))
        return await answers

    def listener(self) -> PubSub | None:
        """To subscribe with; None when Redis is away."""
        redis = self._unless_away()
        return None if redis is None else redis.pubsub()

    def _unless_away(self) -> Redis | None:
        return self._redis if asyncio.get_running_loop().time() >= self._not_before else None

    async def _work(self, redis: Redis) -> None:
        """A task of its own, which no caller cancels: a connection is never left in the middle of an answer."""
        while self._calls:
            calls, self._calls = self._calls[:MAX_AT_ONCE], self._calls[MAX_AT_ONCE:]
            found = await self._round_trip(redis, [command for commands, _ in calls for command in commands])
            if found is None:
                calls, self._calls = calls + self._calls, []
            rest = iter(found or ())
            for commands, answers in calls:
                own = None if found is None else _unless_refused([next(rest) for _ in commands])
                if not answers.done():  # its caller has been cancelled
                    answers.set_result(own)

    async def _round_trip(self, redis: Redis, commands: list[Command]) -> list[Any] | None:
        try:
            async with redis.pipeline(transaction=False) as pipeline:
                for command in commands:
                    pipeline.execute_command(*command)
                answers = await pipeline.execute(raise_on_error=False)
        except Exception as error:  # whatever it is, nobody may wait for ever
            self._lose(error)
            return None
        if self._is_away:
            self._is_away = False
            logger.warning("Redis is back")
        return answers

    def _lose(self, error: Exception) -> None:
        self._not_before = asyncio.get_running_loop().time() + RETRY_AFTER_S
        if not self._is_away:
            self._is_away = True
            logger.warning("Redis is away, which is done without: %s", str(error) or type(error).__name__)


def _unless_refused(answers: list[Any]) -> list[Any] | None:
    for answer in answers:
        if isinstance(answer, ResponseError):
            logger.warning("Redis refuses a command: %s", answer)
            return None
    return answers

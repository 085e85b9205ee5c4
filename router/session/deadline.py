"""The time within which a request gets its first token. The clock is the event loop's, which is virtual in the
simulator.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from cluster.errors import Overloaded
from router.session.timing import Timing

T = TypeVar("T")

RETRY_AFTER_S = 10.0
"""Retry-After of a request whose first token did not come in time, in seconds. Lower brings the request back to the
same long queues; higher keeps the request away from room.
"""


def now() -> float:
    return asyncio.get_running_loop().time()


class FirstTokenDeadline:
    def __init__(self, seconds: float, timing: Timing) -> None:
        self._at = now() + seconds
        self._timing = timing

    async def within(self, awaitable: Awaitable[T]) -> T:
        """The result of the awaitable. The deadline does not hold any more once a token was released.

        Raises:
            Overloaded: the deadline has passed.
        """
        if self._timing.num_output_tokens:
            return await awaitable
        try:
            async with asyncio.timeout_at(self._at):
                return await awaitable
        except TimeoutError as error:
            raise Overloaded("no worker gave a token in time", RETRY_AFTER_S) from error

"""A moment until which something must have come. The event loop's clock: virtual where the loop is."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


def now() -> float:
    return asyncio.get_running_loop().time()


class Deadline:
    def __init__(self, seconds: float) -> None:
        self._at = now() + seconds

    async def within(self, awaitable: Awaitable[T]) -> T:
        """Raises TimeoutError."""
        async with asyncio.timeout_at(self._at):
            return await awaitable

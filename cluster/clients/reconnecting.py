"""A resource that is opened when it is first needed, and again after it was closed."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

R = TypeVar("R")


class Reconnecting(Generic[R]):
    """A resource that is opened when it is first needed, and again after it was closed. All callers share one
    attempt.
    """

    def __init__(self, connect: Callable[[], Awaitable[R]], is_open: Callable[[R], bool]) -> None:
        self._connect = connect
        self._is_open = is_open
        self._opened: R | None = None
        self._opening: asyncio.Future[R] | None = None

    @property
    def opened(self) -> R | None:
        return self._opened if self._opened is not None and self._is_open(self._opened) else None

    @property
    def is_opening(self) -> bool:
        return self._opening is not None

    async def open(self) -> R:
        if (opened := self.opened) is not None:
            return opened
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._connect())
            self._opening.add_done_callback(self._settle)
        return await asyncio.shield(self._opening)

    def _settle(self, opening: asyncio.Future[R]) -> None:
        self._opening = None
        if not opening.cancelled() and opening.exception() is None:
            self._opened = opening.result()

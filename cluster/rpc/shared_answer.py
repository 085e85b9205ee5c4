"""One answer for all callers that ask at about the same time, so that many callers cost no more than one."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

R = TypeVar("R")


class SharedAnswer(Generic[R]):
    """Runs at most one query at a time. Callers that come during a query share its answer, and the answer is given
    again for a while. An error goes only to the callers that waited for it.
    """

    def __init__(self, ask: Callable[[], Awaitable[R]], max_age_s: float) -> None:
        """`max_age_s` is the time for which an answer is given again, in seconds."""
        self._ask = ask
        self._max_age_s = max_age_s
        self._asking: asyncio.Future[R] | None = None
        self._answer: tuple[R, float] | None = None
        """The last answer, and when it came."""

    async def get(self) -> R:
        """The shared answer. Raises the error of the query."""
        if self._asking is None:
            if self._answer is not None and _now() - self._answer[1] < self._max_age_s:
                return self._answer[0]
            self._asking = asyncio.ensure_future(self._ask())
            self._asking.add_done_callback(self._settle)
        return await asyncio.shield(self._asking)  # a caller that gives up does not cancel the query

    def _settle(self, asking: asyncio.Future[R]) -> None:
        self._asking = None
        if not asking.cancelled() and asking.exception() is None:
            self._answer = (asking.result(), _now())


def _now() -> float:
    return asyncio.get_running_loop().time()

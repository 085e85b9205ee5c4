"""One answer for all who ask at about the same time, so that many who ask cost no more than one."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

R = TypeVar("R")


class SharedAnswer(Generic[R]):
    """At most one question is under way. Who asks meanwhile waits for the same answer, and it is given again for a
    while. An error is given to those who waited for it and to nobody else.
    """

    def __init__(self, ask: Callable[[], Awaitable[R]], max_age_s: float) -> None:
        """`max_age_s`: for how long an answer is given again."""
        self._ask = ask
        self._max_age_s = max_age_s
        self._asking: asyncio.Future[R] | None = None
        self._answer: tuple[R, float] | None = None
        """The last one, and when it came."""

    async def get(self) -> R:
        """Raises what the question raises."""
        if self._asking is None:
            if self._answer is not None and _now() - self._answer[1] < self._max_age_s:
                return self._answer[0]
            self._asking = asyncio.ensure_future(self._ask())
            self._asking.add_done_callback(self._settle)
        return await asyncio.shield(self._asking)  # who gives up does not take the answer from the others

    def _settle(self, asking: asyncio.Future[R]) -> None:
        self._asking = None
        if not asking.cancelled() and asking.exception() is None:
            self._answer = (asking.result(), _now())


def _now() -> float:
    return asyncio.get_running_loop().time()

"""What is left to do when sessions have ended: it waits until the ends of their answers are out."""

import asyncio
import logging
from collections.abc import Callable

logger = logging.getLogger("baton.metering")

CLOSE_AFTER_S = 0.01
"""Time after the end of a session at which its entry is closed, in seconds. Longer counts later what was used, loses
more of it when the process is killed, and lets other replicas take the request for one that is open; shorter does it
before the end of the answer is out, which comes later then.
"""


class Closings:
    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._is_at_once = False

    def add(self, close: Callable[[], None]) -> None:
        """Have this done soon."""
        self._waiting.append(close)
        if self._is_at_once:
            self.run()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(CLOSE_AFTER_S, self.run)

    def run(self) -> None:
        """Do all of it now. What fails is logged, and keeps nothing else from being done."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        for close in waiting:
            try:
                close()
            except Exception:
                logger.exception("the entry of a session could not be closed")

    def end(self) -> None:
        """Do all of it now, and what is added from now on at once."""
        self._is_at_once = True
        self.run()

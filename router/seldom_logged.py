"""SeldomLogged: when something about a worker that happens again and again is written to the log. Pure."""

from typing import Final

from cluster.messages.ids import WorkerId

LOG_INTERVAL_S: Final = 60.0
"""Least time between two log lines about one worker, in seconds. Longer informs the operator later; shorter lets one
worker fill the log.
"""
MAX_WORKERS: Final = 1024
"""Workers that are remembered. More takes memory, some 200 bytes each; fewer logs a worker twice within LOG_INTERVAL_S
where many workers are in trouble.
"""


class _Line:
    __slots__ = ("at", "num_since")

    def __init__(self, at: float) -> None:
        self.at = at
        self.num_since = 0


class SeldomLogged:
    def __init__(self) -> None:
        self._last: dict[WorkerId, _Line] = {}
        """The last line about each worker. The oldest one is first."""

    def count(self, worker: WorkerId, now: float) -> int:
        """It has happened once more. Returns how often it has since the last line, if a line is due now, and else 0."""
        last = self._last.get(worker)
        if last is not None and now - last.at < LOG_INTERVAL_S:
            last.num_since += 1
            return 0
        self._last.pop(worker, None)
        self._last[worker] = _Line(now)
        if len(self._last) > MAX_WORKERS:
            del self._last[next(iter(self._last))]
        return 1 + (last.num_since if last is not None else 0)

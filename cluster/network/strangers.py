"""Counts what strangers do at this process's sockets, by socket and reason, and logs it at intervals.

A stranger may connect a thousand times a second, so not every attempt may write a line to the log.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from time import monotonic

logger = logging.getLogger("baton.strangers")

LOG_INTERVAL_S = 60.0
"""Least time between two log lines, in seconds. Longer informs the operator later; shorter lets strangers fill the log.
"""


class Strangers:
    """The counts of one process. All methods may be called from any thread."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._num_unlogged = 0
        self._logged_at: float | None = None

    def count(self, socket: str, reason: str, peer: object = "unknown") -> None:
        """Count one event. `socket` is the name of the process's socket, and `reason` one of a few words. Neither may
        come from a stranger. `peer` is what is known of the stranger, for the log.
        """
        with self._lock:
            self._counts[socket, reason] += 1
            self._num_unlogged += 1
            now = self._clock()
            if self._logged_at is not None and now - self._logged_at < LOG_INTERVAL_S:
                return
            num, self._num_unlogged, self._logged_at = self._num_unlogged, 0, now
        logger.warning(
            "%d connections of strangers were dropped, the last one at the %s: %s, %s", num, socket, reason, peer
        )

    def take(self) -> list[tuple[str, str, int]]:
        """Return and clear all counts: socket, reason and number. For a process that has no metrics page: another
        process of the same worker adds and exports the counts.
        """
        with self._lock:
            taken = [(socket, reason, number) for (socket, reason), number in self._counts.items()]
            self._counts.clear()
        return taken

    def add(self, taken: Iterable[tuple[str, str, int]]) -> None:
        """Add the counts of another process, which has logged them."""
        with self._lock:
            for socket, reason, number in taken:
                self._counts[socket, reason] += number

    def counts(self) -> dict[tuple[str, str], int]:
        """The number of events by socket and reason."""
        with self._lock:
            return dict(self._counts)


STRANGERS = Strangers()
"""The counts of this process."""

STATS_KEY = "strangers"
"""Key of an engine's connector statistics for the counts at the engine's sockets."""

"""What strangers did at this process's sockets: counted by socket and reason, and logged now and then.

A stranger may connect a thousand times a second, so it must not cost a line in the log each time.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from time import monotonic

logger = logging.getLogger("baton.strangers")

LOG_INTERVAL_S = 60.0
"""At most one line is logged in so long, in seconds. Longer tells the operator later how many there were, shorter lets
strangers fill the log.
"""


class Strangers:
    """May be told from any thread."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._num_unlogged = 0
        self._logged_at: float | None = None

    def count(self, socket: str, reason: str, peer: object = "unknown") -> None:
        """`socket`: which of the process's sockets. `reason`: one of a few words. Neither may come from a stranger.
        `peer`: whatever is known of the stranger, for the log.
        """
        with self._lock:
            self._counts[socket, reason] += 1
            self._num_unlogged += 1
            now = self._clock()
            if self._logged_at is not None and now - self._logged_at < LOG_INTERVAL_S:
                return
            num, self._num_unlogged, self._logged_at = self._num_unlogged, 0, now
        logger.warning(
            "%d connections of strangers were dropped, the last at the %s: %s, %s", num, socket, reason, peer
        )

    def take(self) -> list[tuple[str, str, int]]:
        """Socket, reason and number, of all that has been counted since they were last taken: for another process of
        the same worker, which exports them.
        """
        with self._lock:
            taken = [(socket, reason, number) for (socket, reason), number in self._counts.items()]
            self._counts.clear()
        return taken

    def add(self, taken: Iterable[tuple[str, str, int]]) -> None:
        """What another process has counted, and logged."""
        with self._lock:
            for socket, reason, number in taken:
                self._counts[socket, reason] += number

    def counts(self) -> dict[tuple[str, str], int]:
        """By socket and reason."""
        with self._lock:
            return dict(self._counts)


STRANGERS = Strangers()
"""Those of this process."""

STATS_KEY = "strangers"
"""Of those at an engine's sockets, in its connector statistics."""

"""StartTimes: how long workers take from their order to their first report. Pure."""

from typing import Final

SHARE: Final = 0.3
"""Weight of the newest start in the mean. Higher takes one slow start for the rule; lower learns late."""
LEAST_PART: Final = 0.25
"""Part of the expected start that no start counts less than. Higher does not learn that workers start faster; lower
takes workers that only come back for workers that start.
"""
LONGEST_S: Final = 3600.0
"""Longest start that counts, in seconds. Higher looks further ahead after machines could not be had; lower takes slow
starts for faster ones.
"""


class StartTimes:
    def __init__(self, expected_s: float) -> None:
        """`expected_s`: seconds that a start takes until one has been seen."""
        self.horizon_s = expected_s
        """Seconds that a worker which is ordered now is expected to take."""
        self._least_s = LEAST_PART * expected_s
        self._seen = False
        self._ordered: int | None = None
        """Workers that were ordered at the last look."""
        self._waits_for: tuple[int, float] | None = None
        """Number of workers that were ordered, and when. None if no order is open."""

    def begin_anew(self) -> None:
        """Who tells of the workers is new, and may not know all of them yet."""
        self._ordered = self._waits_for = None

    def observe(self, ordered: int, live: int, now: float) -> None:
        """`ordered` workers should be there, and `live` are."""
        before, self._ordered = self._ordered, ordered
        if self._waits_for is None:
            if before is not None and ordered > max(before, live):
                self._waits_for = ordered, now
            return
        wanted, since = self._waits_for
        if ordered < wanted:  # the order was taken back
            self._waits_for = None
        elif live >= wanted:
            took_s = min(max(now - since, self._least_s), LONGEST_S)
            self.horizon_s = self.horizon_s + SHARE * (took_s - self.horizon_s) if self._seen else took_s
            self._seen, self._waits_for = True, None

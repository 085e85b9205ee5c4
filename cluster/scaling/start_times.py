"""StartTimes: how long workers take from their order to their first report. Pure."""

from typing import Final

SHARE: Final = 0.3
"""Weight of the newest start in the mean. Higher takes one slow start for the rule; lower learns late."""
LONGEST_S: Final = 3600.0
"""Longest start that counts, in seconds. Higher looks further ahead after machines could not be had; lower takes slow
starts for faster ones.
"""


class StartTimes:
    def __init__(self, expected_s: float) -> None:
        """`expected_s`: seconds that a start takes until one has been seen."""
        self.horizon_s = expected_s
        """Seconds that a worker which is ordered now is expected to take."""
        self._seen = False
        self._waits_for: tuple[int, float] | None = None
        """Number of workers that were ordered, and when. None if all are there."""

    def observe(self, ordered: int, live: int, now: float) -> None:
        """`ordered` workers should be there, and `live` are."""
        if self._waits_for is None:
            if ordered > live:
                self._waits_for = ordered, now
            return
        wanted, since = self._waits_for
        if live >= wanted:
            took_s = min(now - since, LONGEST_S)
            self.horizon_s = self.horizon_s + SHARE * (took_s - self.horizon_s) if self._seen else took_s
            self._seen, self._waits_for = True, None
        elif ordered < wanted:  # the order was taken back
            self._waits_for = None

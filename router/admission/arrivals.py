"""How fast others will arrive after a request that arrives now, so that a placement can count those who will suffer it.

An arrival tells of others where traffic comes in bursts: what counts is not the mean rate, but the rate that requests
have found after their own arrival (the Palm rate). For Poisson arrivals the two are the same.
"""

from collections import deque
from math import exp
from typing import Final, final

HORIZON_S: Final = 1.0
"""After an arrival, in which the others are counted."""
SHARE: Final = 0.01
"""Of the newest arrival in the average."""
RECENT_S: Final = 2.0


@final
class ArrivalRate:
    __slots__ = ("_after", "_at", "_found", "_recent")

    def __init__(self) -> None:
        self._recent = 0.0
        """Arrivals, each counting less the older it is."""
        self._at = 0.0
        self._after: deque[float] = deque()
        """Arrivals of the last HORIZON_S."""
        self._found = 0.0
        """Others that arrived within HORIZON_S, on average."""

    def note(self, now: float) -> None:
        self._age(now)
        self._recent += 1.0
        self._after.append(now)

    def per_s(self, now: float) -> float:
        """Expected in the next seconds, after an arrival now."""
        self._age(now)
        recent, found = self._recent / RECENT_S, self._found / HORIZON_S
        return recent if recent > found else found

    def _age(self, now: float) -> None:
        age_s = now - self._at
        if age_s > 0.0:
            if self._recent:
                self._recent *= exp(-age_s / RECENT_S)
            self._at = now
        while self._after and now - self._after[0] > HORIZON_S:
            self._after.popleft()  # those behind it came while it was there: within its horizon
            self._found += SHARE * (len(self._after) - self._found)

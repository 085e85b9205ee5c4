"""How many requests arrive soon after a request that arrives now, so that a placement can count the requests that it
will delay.

Where traffic comes in bursts, an arrival makes further arrivals more likely. So the mean rate is not what counts, but
the rate that requests find after their own arrival (the Palm rate). For Poisson arrivals the two are the same.
"""

from collections import deque
from typing import Final, final

from router.prediction.decaying import DecayingSum, moving_mean

HORIZON_S: Final = 1.0
"""Time after an arrival in which further arrivals are counted, in seconds. Longer averages bursts away; shorter counts
a part of each burst only.
"""
SHARE: Final = 0.01
"""Share of the newest arrival in the mean of further arrivals. Higher follows chance; lower learns late that traffic
has become bursty.
"""
RECENT_S: Final = 2.0
"""Window of the mean rate, in seconds. Longer sees a burst late; shorter takes chance for a burst."""


@final
class ArrivalRate:
    __slots__ = ("_after", "_found", "_recent")

    def __init__(self) -> None:
        self._recent = DecayingSum(RECENT_S)
        """Arrivals."""
        self._after: deque[float] = deque()
        """Times of the arrivals of the last HORIZON_S."""
        self._found = 0.0
        """Mean number of further arrivals within HORIZON_S after an arrival."""

    def note(self, now: float) -> None:
        self._close_horizons(now)
        self._recent.add(1.0, now)
        self._after.append(now)

    def per_s(self, now: float) -> float:
        """Arrivals per second to expect after an arrival now."""
        self._close_horizons(now)
        recent, found = self._recent.at(now) / RECENT_S, self._found / HORIZON_S
        return recent if recent > found else found

    def _close_horizons(self, now: float) -> None:
        """Learn from arrivals whose horizon has passed."""
        while self._after and now - self._after[0] > HORIZON_S:
            self._after.popleft()  # arrivals behind it came within its horizon: it was still in the queue
            self._found = moving_mean(self._found, len(self._after), SHARE)

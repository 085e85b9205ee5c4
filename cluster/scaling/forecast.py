"""Forecast: how many requests per second will come when a worker that is started now is ready. Pure.

The arrivals of each BUCKET_S are one observation. Their level and their trend are smoothed (Holt's method with a damped
trend). A forecast that was made is compared with what came, and the wanted quantile of these errors is added to later
forecasts: a load that comes in bursts, or rises faster than a line, gets the room that it has needed before.
"""

from collections import deque
from typing import Final

BUCKET_S: Final = 10.0
"""Length of an observation, in seconds. Longer sees a change later; shorter takes chance for a change."""
LEVEL_SHARE: Final = 0.25
"""Weight of the newest observation in the level. Higher follows chance; lower follows a change late."""
TREND_SHARE: Final = 0.1
"""Weight of the newest change of the level in the trend. Higher takes a burst for a trend; lower is late to see a rise.
"""
DAMPING: Final = 0.95
"""Part of the trend that is left after a bucket. Higher carries a trend on for longer, and overshoots at its end; lower
hardly looks ahead.
"""
NUM_ERRORS: Final = 90
"""Errors that are remembered: those of the last 15 minutes. More remembers old bursts longer, and keeps workers for
them; fewer forgets a burst before the next one.
"""
ERROR_QUANTILE: Final = 0.85
"""Quantile of the errors that is added to a forecast. Higher keeps more workers for bursts; lower meets fewer of them.
"""
COMPARED: Final = 3
"""Buckets over whose mean a forecast is compared with what came. More hides short bursts, which workers ride out anyway
by queues; fewer asks for workers for every burst.
"""


class Forecast:
    def __init__(self) -> None:
        self._level: float | None = None
        """Requests per second. None before the first bucket has ended."""
        self._trend = 0.0
        """Change of the level per bucket."""
        self._began_at: float | None = None
        """Start of the bucket that is being filled, in seconds. None before the first observation."""
        self._in_bucket = 0.0
        self._last = 0
        self._last_at = 0.0
        self._recent: deque[float] = deque(maxlen=COMPARED)
        """Rates of the last buckets."""
        self._made: deque[tuple[int, float]] = deque()
        """Forecasts that time has not shown yet: number of the bucket that they are for, and the rate."""
        self._errors: deque[float] = deque([0.0] * NUM_ERRORS, maxlen=NUM_ERRORS)
        """By how much rates were higher than forecast, as a share of the level, never below 0."""
        self._num_buckets = 0

    def begin_anew(self, num_arrived: int, now: float) -> None:
        """The count has another origin. What was learned of the rate stays."""
        self._last, self._last_at = num_arrived, now
        self._began_at, self._in_bucket = now, 0.0

    def observe(self, num_arrived: int, now: float, horizon_s: float) -> None:
        """`num_arrived`: requests so far. `horizon_s`: how far ahead forecasts are wanted, in seconds."""
        if self._began_at is None or num_arrived < self._last:
            self.begin_anew(num_arrived, now)
            return
        new, since_s = float(num_arrived - self._last), now - self._last_at
        self._last, self._last_at = num_arrived, now
        while self._began_at + BUCKET_S <= now:
            ends_at = self._began_at + BUCKET_S
            part = new * (ends_at - (now - since_s)) / since_s if since_s > 0 else 0.0
            self._end_bucket((self._in_bucket + part) / BUCKET_S, horizon_s)
            new, since_s = new - part, now - ends_at
            self._began_at, self._in_bucket = ends_at, 0.0
        self._in_bucket += new

    def rate_per_s(self, horizon_s: float) -> float | None:
        """Requests per second at the horizon, with room for the usual error of such a forecast. None before the first
        bucket has ended.
        """
        if self._level is None:
            return None
        return self._expected(horizon_s) + self._margin() * self._level

    def _expected(self, horizon_s: float) -> float:
        assert self._level is not None
        num = horizon_s / BUCKET_S
        return max(0.0, self._level + self._trend * DAMPING * (1 - DAMPING**num) / (1 - DAMPING))

    def _margin(self) -> float:
        return sorted(self._errors)[int(ERROR_QUANTILE * NUM_ERRORS)]

    def _end_bucket(self, rate: float, horizon_s: float) -> None:
        self._num_buckets += 1
        self._recent.append(rate)
        if self._level is None:
            self._level = rate
        else:
            level = LEVEL_SHARE * rate + (1 - LEVEL_SHARE) * max(0.0, self._level + DAMPING * self._trend)
            self._trend = TREND_SHARE * (level - self._level) + (1 - TREND_SHARE) * DAMPING * self._trend
            self._level = level
        came = sum(self._recent) / len(self._recent)
        while self._made and self._made[0][0] <= self._num_buckets:
            _, expected = self._made.popleft()
            self._errors.append(max(0.0, came - expected) / max(self._level, came, 1e-9))
        self._made.append((self._num_buckets + max(1, round(horizon_s / BUCKET_S)), self._expected(horizon_s)))

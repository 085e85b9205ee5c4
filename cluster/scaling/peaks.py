"""The floor that known peaks of the week give to the pools. Pure."""

from typing import Final

from cluster.config.scaling import DAYS, Peak
from cluster.scaling.pool_sizes import PoolSizes

SECONDS_PER_DAY: Final = 86400
SECONDS_PER_WEEK: Final = 7 * SECONDS_PER_DAY
EPOCH_DAY: Final = 3
"""Day of the week of 1970-01-01, from Monday as 0."""


def floor_at(peaks: tuple[Peak, ...], wall_s: float, ahead_s: float) -> PoolSizes:
    """The fewest workers that any peak asks for at some time from `wall_s` (seconds since 1970, UTC) until `ahead_s`
    later: workers are ordered before they are needed.
    """
    now = (wall_s + EPOCH_DAY * SECONDS_PER_DAY) % SECONDS_PER_WEEK
    prefill = decode = 0
    for peak in peaks:
        if any(
            _meets(_clock_s(peak.start) + DAYS.index(day) * SECONDS_PER_DAY, _length_s(peak), now, ahead_s)
            for day in peak.days
        ):
            prefill, decode = max(prefill, peak.prefill), max(decode, peak.decode)
    return PoolSizes(prefill, decode)


def _meets(start_s: float, length_s: float, now: float, ahead_s: float) -> bool:
    """Whether a peak that starts at a time of the week goes on now or starts within `ahead_s`."""
    return (now - start_s) % SECONDS_PER_WEEK < length_s or (start_s - now) % SECONDS_PER_WEEK <= ahead_s


def _length_s(peak: Peak) -> float:
    return (_clock_s(peak.end) - _clock_s(peak.start)) % SECONDS_PER_DAY or SECONDS_PER_DAY


def _clock_s(text: str) -> int:
    hours, minutes = text.split(":")
    return 3600 * int(hours) + 60 * int(minutes)

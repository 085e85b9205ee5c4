import pytest

from cluster.config.scaling import Day, Peak
from cluster.scaling.peaks import SECONDS_PER_DAY, SECONDS_PER_WEEK, floor_at
from cluster.scaling.pool_sizes import PoolSizes

MONDAY_S = 4 * SECONDS_PER_DAY
"""1970-01-05 was a Monday."""


def a_peak(start: str, end: str, *days: Day) -> Peak:
    return Peak(start=start, end=end, days=days, prefill=2, decode=4)


def floor(peak: Peak, hours: float, ahead_s: float = 0.0) -> PoolSizes:
    """`hours`: since the start of a Monday."""
    return floor_at((peak,), MONDAY_S + 2800 * SECONDS_PER_WEEK + 3600 * hours, ahead_s)


def test_peak_holds_from_its_start_to_its_end_on_its_days() -> None:
    peak = a_peak("08:30", "18:00", "mon", "fri")
    assert [floor(peak, hours).decode for hours in (8.4, 8.6, 17.9, 18.1, 24 + 9, 4 * 24 + 9)] == [0, 4, 4, 0, 0, 4]


def test_peak_over_midnight_belongs_to_the_day_of_its_start() -> None:
    peak = a_peak("22:00", "02:00", "sun")
    assert [floor(peak, hours).prefill for hours in (0.5, 1.9, 2.1, 22.5, 6 * 24 + 23)] == [2, 2, 0, 0, 2]


def test_workers_are_asked_for_before_the_peak() -> None:
    peak = a_peak("08:30", "18:00", "mon")
    assert floor(peak, 8.4, ahead_s=600.0) == PoolSizes(2, 4)
    assert floor(peak, -0.1, ahead_s=9 * 3600.0) == PoolSizes(2, 4)  # from Sunday on


def test_the_highest_of_several_peaks_counts_for_each_pool() -> None:
    peaks = (
        Peak(start="08:00", end="20:00", prefill=5, decode=1),
        Peak(start="10:00", end="11:00", prefill=1, decode=9),
    )
    assert floor_at(peaks, MONDAY_S + 10.5 * 3600, 0.0) == PoolSizes(5, 9)


@pytest.mark.parametrize(
    ("start", "end"), [("8:30", "10:00"), ("24:01", "10:00"), ("morning", "10:00"), ("09:00", "09:00")]
)
def test_times_that_make_no_peak_are_refused(start: str, end: str) -> None:
    with pytest.raises(ValueError, match="start"):
        Peak(start=start, end=end)

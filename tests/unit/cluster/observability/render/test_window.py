"""Times as Grafana chooses them."""

import pytest

from cluster.observability.render.window import MOST_TICKS, Window, date, window

NOON = 1_764_331_200.0
"""2025-11-28 12:00:00 UTC."""
HOUR, DAY = 3600, 86400


@pytest.mark.parametrize(
    ("length", "scrape", "step", "rate_interval"),
    [
        (HOUR // 2, 15, 15, 60),  # no step is shorter than a scrape
        (HOUR // 2, 1, 5, 6),
        (HOUR // 2, 60, 60, 240),
        (6 * HOUR, 15, 60, 75),
        (DAY, 15, 300, 315),
        (7 * DAY, 15, 1800, 1815),
        (1000 * DAY, 15, DAY, DAY + 15),
    ],
)
def test_step_and_window_of_rates_are_grafana_s(length: int, scrape: int, step: int, rate_interval: int) -> None:
    chosen = window(NOON, length, scrape)
    assert (chosen.step, chosen.rate_interval) == (step, rate_interval)


def test_ends_are_multiples_of_the_step() -> None:
    chosen = window(NOON + 7.3, HOUR, 15)
    assert (chosen.start, chosen.end) == (NOON - HOUR, NOON)


def test_window_has_two_times_at_least() -> None:
    assert window(NOON + 5, 1, 15) == Window(int(NOON) - 15, int(NOON), 15, 15)


@pytest.mark.parametrize("length", [60, 600, HOUR, 5 * HOUR, DAY, 3 * DAY, 40 * DAY, 1000 * DAY])
def test_ticks_are_few_and_within_the_window(length: int) -> None:
    chosen = window(NOON, length, 1)
    times = [time for time, _ in chosen.ticks()]
    assert 1 <= len(times) <= MOST_TICKS + 1
    assert chosen.start <= times[0] and times[-1] <= chosen.end


def test_ticks_tell_the_time_and_at_midnight_the_date() -> None:
    assert [text for _, text in window(NOON, HOUR, 15).ticks()][:2] == ["11:00", "11:10"]
    assert next(text for _, text in window(NOON, 60, 1).ticks()) == "11:59:00"
    assert [text for _, text in window(NOON, DAY, 15).ticks()] == ["12:00", "18:00", "11-28", "06:00", "12:00"]


def test_moments_have_a_date_where_the_window_is_longer_than_a_day() -> None:
    assert window(NOON, HOUR, 15).moment(NOON + 1.5) == "12:00:01"
    assert window(NOON, 3 * DAY, 15).moment(NOON) == "11-28 12:00:00"
    assert date(NOON) == "2025-11-28 12:00:00 UTC"

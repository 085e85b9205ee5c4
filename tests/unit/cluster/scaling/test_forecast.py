import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.scaling.forecast import BUCKET_S, Forecast


def watched(rates: list[float], horizon_s: float = 60.0, every_s: float = 1.0) -> Forecast:
    """`rates`: requests per second, for one bucket each."""
    forecast, now, total = Forecast(), 0.0, 0.0
    forecast.observe(0, now, horizon_s)
    for rate in rates:
        for _ in range(round(BUCKET_S / every_s)):
            now += every_s
            total += rate * every_s
            forecast.observe(round(total), now, horizon_s)
    return forecast


def test_nothing_is_forecast_before_the_first_bucket_has_ended() -> None:
    assert Forecast().rate_per_s(60.0) is None
    assert watched([5.0]).rate_per_s(60.0) == pytest.approx(5.0)


def test_steady_rate_is_forecast_as_it_is() -> None:
    assert watched([8.0] * 40).rate_per_s(60.0) == pytest.approx(8.0, rel=0.02)


def test_rising_rate_is_carried_on() -> None:
    rate = watched([float(number) for number in range(1, 41)]).rate_per_s(60.0)
    assert rate is not None and 43.0 < rate < 60.0


def test_bursts_that_came_leave_room_for_the_next_one() -> None:
    bursts = watched(([4.0] * 9 + [12.0] * 3) * 6 + [4.0] * 6).rate_per_s(60.0)
    assert bursts is not None and bursts > 1.5 * 4.0


def test_forecast_falls_to_nothing_when_traffic_stops() -> None:
    rate = watched([50.0] * 30 + [0.0] * 120).rate_per_s(60.0)
    assert rate is not None and rate < 0.01


def test_lost_looks_change_little() -> None:
    rates = [5.0, 9.0, 7.0] * 10
    often, seldom = watched(rates).rate_per_s(60.0), watched(rates, every_s=5.0).rate_per_s(60.0)
    assert often == pytest.approx(seldom, rel=0.1)


def test_count_that_begins_anew_is_no_negative_rate() -> None:
    forecast = watched([20.0] * 10)
    forecast.observe(3, 101.0, 60.0)
    forecast.observe(223, 112.0, 60.0)
    rate = forecast.rate_per_s(60.0)
    assert rate is not None and 15.0 < rate < 25.0


@given(steps=st.lists(st.tuples(st.floats(0.001, 500), st.integers(0, 10_000)), max_size=60))
def test_forecast_is_finite_and_not_negative_whatever_comes(steps: list[tuple[float, int]]) -> None:
    forecast, now, total = Forecast(), 0.0, 0
    for seconds, more in steps:
        now, total = now + seconds, total + more
        forecast.observe(total, now, 60.0)
        rate = forecast.rate_per_s(60.0)
        assert rate is None or 0.0 <= rate < 1e8

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.prediction.decaying import DecayingSum, moving_mean, moving_median, remaining

amounts = st.floats(0.0, 1e6)
events = st.lists(st.tuples(st.floats(0.0, 20.0), amounts, st.booleans()), max_size=50)
"""Each: seconds since the last one, an amount, and whether the sum is also read."""


def closed_formula(added: list[tuple[float, float]], now: float, window_s: float) -> float:
    return math.fsum(amount * math.exp((at - now) / window_s) for at, amount in added)


@given(events, st.floats(0.1, 60.0), st.floats(0.0, 1e6))
def test_sum_is_that_of_the_closed_formula_however_often_it_is_read(
    events: list[tuple[float, float, bool]], window_s: float, begins_at: float
) -> None:
    total, now = DecayingSum(window_s), begins_at
    added: list[tuple[float, float]] = []
    for gap_s, amount, is_read in events:
        now += gap_s
        if is_read:
            assert total.at(now) == pytest.approx(closed_formula(added, now, window_s), rel=1e-9, abs=1e-12)
        total.add(amount, now)
        added.append((now, amount))
        assert total.value == pytest.approx(closed_formula(added, now, window_s), rel=1e-9, abs=1e-12)


@given(events, st.floats(0.0, 100.0))
def test_sum_neither_grows_nor_becomes_negative_by_itself(
    events: list[tuple[float, float, bool]], wait_s: float
) -> None:
    total, now = DecayingSum(3.0), 0.0
    for gap_s, amount, _ in events:
        now += gap_s
        total.add(amount, now)
    before = total.value
    assert 0.0 <= total.at(now + wait_s) <= before


def test_steady_stream_sums_up_to_its_rate_times_the_window() -> None:
    total = DecayingSum(10.0)
    for number in range(100_000):
        total.add(0.01, number * 0.01)
    assert total.value == pytest.approx(10.0, rel=0.01)


def test_time_that_goes_back_changes_nothing() -> None:
    total = DecayingSum(1.0)
    total.add(2.0, 10.0)
    assert total.at(5.0) == 2.0
    total.add(1.0, 5.0)
    assert total.at(10.0) == 3.0


def test_sum_that_was_cleared_is_empty() -> None:
    total = DecayingSum(1.0)
    total.add(2.0, 1.0)
    total.clear()
    assert total.at(1.0) == 0.0
    total.add(1.0, 2.0)
    assert total.at(2.0) == 1.0


def test_an_e_th_remains_after_one_window() -> None:
    assert remaining(0.0, 7.0) == 1.0
    assert remaining(7.0, 7.0) == pytest.approx(1 / math.e)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), st.floats(0.01, 1.0))
def test_moving_mean_is_that_of_the_closed_formula(samples: list[float], share: float) -> None:
    mean: float | None = None
    for sample in samples:
        mean = moving_mean(mean, sample, share)
    first, *others = samples
    weights = [share * (1 - share) ** number for number in reversed(range(len(others)))]
    expected = math.fsum([first * (1 - share) ** len(others), *(w * s for w, s in zip(weights, others, strict=True))])
    assert mean == pytest.approx(expected, rel=1e-9, abs=1e-6)


def test_moving_median_comes_to_the_median_however_large_the_largest_samples_are() -> None:
    median = None
    for number in range(3000):
        median = moving_median(median, (1.0, 2.0, 1000.0)[number % 3], 0.02)
    assert median == pytest.approx(2.0, rel=0.05)

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.admission.arrivals import ArrivalRate


def test_rate_of_poisson_arrivals_is_their_mean() -> None:
    chance, rate, now = random.Random(1), ArrivalRate(), 0.0
    seen: list[float] = []
    for number in range(3000):
        now += chance.expovariate(10.0)
        rate.note(now)
        if number > 1000:
            seen.append(rate.per_s(now))
    assert sum(seen) / len(seen) == pytest.approx(10.0, rel=0.3)


def test_rate_after_an_arrival_of_bursts_is_that_of_a_burst() -> None:
    rate, now = ArrivalRate(), 0.0
    for _ in range(60):  # 20 at once, every 20 s: one a second on average
        now += 20.0
        for number in range(20):
            rate.note(now + number * 0.01)
    now += 20.0
    rate.note(now)
    assert rate.per_s(now) == pytest.approx(9.5, rel=0.3)  # who comes in the middle of a burst finds half of it to come


def test_rate_decays_to_what_bursts_are_known_to_bring() -> None:
    rate = ArrivalRate()
    for number in range(50):
        rate.note(number * 0.01)
    during = rate.per_s(0.5)
    assert during > 10.0
    assert 0.0 < rate.per_s(100.0) < during


@given(st.lists(st.floats(0.0, 100.0), max_size=30))
def test_rate_is_never_negative_and_never_more_than_all(waits: list[float]) -> None:
    rate, now = ArrivalRate(), 0.0
    for wait_s in waits:
        now += wait_s
        rate.note(now)
        assert 0.0 < rate.per_s(now) <= len(waits)

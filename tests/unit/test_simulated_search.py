"""The search for the highest rate: right to its resolution, in few runs, whatever the curve."""

from math import exp, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.simulate.search import MaxRate, max_rate


def falling_at(capacity: float, steepness: float = 15.0) -> object:
    return lambda rate: 1 / (1 + exp(min(700.0, steepness * log(rate / capacity) - log(9))))


@given(capacity=st.floats(0.1, 50), steepness=st.floats(2, 200), guess=st.floats(0.5, 10))
def test_rate_is_found_to_one_percent_below_the_target(capacity, steepness, guess):
    found = max_rate(falling_at(capacity, steepness), 0.9, guess)
    assert capacity / 1.0101 <= found.rate <= capacity * 1.0001
    assert found.attainment >= 0.9


def test_good_guess_takes_few_runs():
    assert len(max_rate(falling_at(10), 0.9, 9).tried) <= 6
    assert len(max_rate(falling_at(10, 60), 0.9, 11).tried) <= 8


def test_hopeless_trials_need_no_figure():
    curve = falling_at(10)
    found = max_rate(lambda rate: at if (at := curve(rate)) >= 0.9 else None, 0.9, 5)
    assert found.rate == pytest.approx(10, rel=0.011)


def test_target_out_of_reach_is_zero_not_an_endless_search():
    found = max_rate(lambda rate: 0.5, 0.9, 4.0)
    assert found == MaxRate(0.0, 0.0, found.tried)
    assert len(found.tried) < 12


def test_load_that_is_always_met_ends_the_search_too():
    found = max_rate(lambda rate: 1.0, 0.9, 4.0)
    assert found.rate > 500

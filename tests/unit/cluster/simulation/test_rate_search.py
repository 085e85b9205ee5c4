"""The search for the highest rate: right to its resolution, in few runs, whatever the curve."""

from collections.abc import Callable
from math import exp, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.simulation.rate_search import MaxRate, best_of, max_rate

MIDDLE_FIRST = [4, 3, 5, 2, 6, 1, 7]


def falling_at(capacity: float, steepness: float = 15.0) -> Callable[[float], float]:
    return lambda rate: 1 / (1 + exp(min(700.0, steepness * log(rate / capacity) - log(9))))


@given(capacity=st.floats(0.1, 50), steepness=st.floats(2, 200), guess=st.floats(0.5, 10))
def test_rate_is_found_to_one_percent_below_the_target(capacity: float, steepness: float, guess: float) -> None:
    found = max_rate(falling_at(capacity, steepness), 0.9, guess)
    assert capacity / 1.0101 <= found.rate <= capacity * 1.0001
    assert found.attainment >= 0.9


def test_good_guess_takes_few_runs() -> None:
    assert max_rate(falling_at(10), 0.9, 9).num_trials <= 6
    assert max_rate(falling_at(10, 60), 0.9, 11).num_trials <= 8


@given(guess=st.floats(0.2, 300))
def test_rate_that_is_found_does_not_depend_on_the_guess(guess: float) -> None:
    assert max_rate(falling_at(7.77), 0.9, guess).rate == max_rate(falling_at(7.77), 0.9, 5).rate


def test_hopeless_trials_need_no_figure() -> None:
    curve = falling_at(10)
    found = max_rate(lambda rate: at if (at := curve(rate)) >= 0.9 else None, 0.9, 5)
    assert found.rate == pytest.approx(10, rel=0.011)


def test_target_out_of_reach_is_zero_not_an_endless_search() -> None:
    found = max_rate(lambda rate: 0.5, 0.9, 4.0)
    assert found == MaxRate(0.0, 0.0, found.num_trials)
    assert found.num_trials < 12


def test_load_that_is_always_met_is_an_error_and_no_endless_search() -> None:
    with pytest.raises(ValueError, match="too few requests"):
        max_rate(lambda rate: 1.0, 0.9, 4.0)


@given(best=st.integers(1, 7), width=st.floats(1, 10))
def test_best_setting_is_found_wherever_it_is(best: int, width: float) -> None:
    capacities = {split: 10 / (1 + ((split - best) / width) ** 2) for split in range(1, 8)}
    found = best_of(lambda split: falling_at(capacities[split]), MIDDLE_FIRST, 0.9, 5.0)
    assert found.found.rate >= capacities[best] / 1.021
    assert capacities[found.setting] >= 10 / 1.021


def test_setting_that_is_no_better_costs_one_trial() -> None:
    tried: list[int] = []

    def trial_of(split: int) -> Callable[[float], float]:
        def trial(rate: float) -> float:
            tried.append(split)
            return falling_at(10 - abs(split - 4))(rate)

        return trial

    assert best_of(trial_of, MIDDLE_FIRST, 0.9, 9.0).setting == 4
    assert all(tried.count(split) == 1 for split in (1, 2, 3, 5, 6, 7))


def test_setting_without_any_capacity_does_not_hide_the_others() -> None:
    found = best_of(lambda split: (lambda rate: 0.0) if split == 4 else falling_at(3), [4, 3, 5], 0.9, 2.0)
    assert found.setting in (3, 5) and found.found.rate == pytest.approx(3, rel=0.011)

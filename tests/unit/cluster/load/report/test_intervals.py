"""Intervals hold the truth as often as they say, are wider where less is known, and know that neighbours are alike."""

import random
from collections.abc import Callable
from functools import cache
from math import sqrt
from statistics import NormalDist

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.load.report.intervals import NUM_BLOCKS, blocks_of, quantile_estimates, share
from cluster.simulation.results.summary import quantile

VALUES = st.lists(st.floats(0.001, 100, allow_nan=False), min_size=1, max_size=200)
NUM_RUNS = 60


@settings(max_examples=40, deadline=None)
@given(VALUES)
def test_quantiles_are_those_of_the_simulator_and_within_their_interval(values: list[float]) -> None:
    probabilities = (0.5, 0.9, 0.99)
    found = quantile_estimates(values, probabilities)
    assert [estimate.value for estimate in found] == [quantile(sorted(values), p) for p in probabilities]
    assert all(0 <= estimate.low <= estimate.value <= estimate.upper for estimate in found)
    assert all(estimate.high is None or estimate.high <= max(values) for estimate in found)


@settings(deadline=None)
@given(st.lists(st.booleans(), max_size=200))
def test_share_is_within_its_interval(good: list[bool]) -> None:
    found = share(good)
    assert 0 <= found.low <= found.value <= found.upper <= 1


def test_all_good_of_180_is_at_least_98_percent() -> None:
    found = share([True] * 180)
    assert found.low == pytest.approx(0.980, abs=5e-4) and found.high == 1.0


def test_quantile_without_enough_values_beyond_it_has_no_upper_end() -> None:
    few, many = (quantile_estimates(alike(0, 0.0, number), (0.99,))[0] for number in (300, 1500))
    assert few.high is None and many.high is not None


def test_interval_of_a_median_leaves_as_many_values_below_as_above() -> None:
    (found,) = quantile_estimates(random.Random(0).sample([float(n) for n in range(1, 1001)], 1000), (0.5,))
    assert found.low + found.upper == pytest.approx(1001, abs=3)
    assert 62 < found.upper - found.low < 90


@given(st.integers(1, 1000))
def test_blocks_are_consecutive_and_even(number: int) -> None:
    blocks = blocks_of(number)
    assert blocks == sorted(blocks) and len(blocks) == number
    sizes = [blocks.count(block) for block in range(blocks[-1] + 1)]
    assert max(sizes) - min(sizes) <= 1 and len(sizes) <= NUM_BLOCKS


@cache
def alike(seed: int, likeness: float, number: int) -> list[float]:
    """Values that are uniform from 0 to 1, each like the one before."""
    rng, distribution = random.Random(seed), NormalDist()
    state, found = rng.gauss(0, 1), []
    for _ in range(number):
        found.append(distribution.cdf(state))
        state = likeness * state + sqrt(1 - likeness**2) * rng.gauss(0, 1)
    return found


def holds_share(values: list[float], truth: float) -> bool:
    found = share([value < truth for value in values])
    return found.low <= truth <= found.upper


def holds_quantile(values: list[float], truth: float) -> bool:
    (found,) = quantile_estimates(values, (truth,))
    return found.low <= truth <= found.upper


@pytest.mark.parametrize("likeness", [0.0, 0.8])
@pytest.mark.parametrize(("holds", "truth"), [(holds_share, 0.99), (holds_quantile, 0.99), (holds_quantile, 0.9)])
def test_interval_holds_the_truth_about_as_often_as_it_says(
    holds: Callable[[list[float], float], bool], truth: float, likeness: float
) -> None:
    held = sum(holds(alike(seed, likeness, 180), truth) for seed in range(NUM_RUNS))
    assert held >= 0.91 * NUM_RUNS


def test_neighbours_that_are_alike_make_the_interval_wider() -> None:
    rng = random.Random(1)
    runs = [rng.random() < 0.5 for _ in range(20)]
    alike = [run for run in runs for _ in range(20)]
    mixed = rng.sample(alike, len(alike))
    wide, narrow = (share(good) for good in (alike, mixed))
    assert wide.upper - wide.low > 2 * (narrow.upper - narrow.low)

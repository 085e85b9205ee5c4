"""Intervals hold the value, are wider where less is known, and know that neighbours are alike."""

import random
from statistics import NormalDist

from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.load.report.intervals import NUM_BLOCKS, blocks_of, quantile_estimates, share
from cluster.simulation.results.summary import quantile

VALUES = st.lists(st.floats(0.001, 100, allow_nan=False), min_size=1, max_size=200)


@settings(max_examples=40)
@given(VALUES)
def test_quantiles_are_those_of_the_simulator_and_within_their_interval(values: list[float]) -> None:
    probabilities = (0.5, 0.9, 0.99)
    found = quantile_estimates(values, probabilities, random.Random(0))
    assert [estimate.value for estimate in found] == [quantile(sorted(values), p) for p in probabilities]
    assert all(min(values) <= estimate.low <= estimate.high <= max(values) for estimate in found)


@given(st.lists(st.booleans(), max_size=200))
def test_share_is_within_its_interval(good: list[bool]) -> None:
    found = share(good, random.Random(0))
    assert 0 <= found.low <= found.value <= found.high <= 1


def test_interval_of_a_share_is_never_a_point() -> None:
    found = share([True] * 100, random.Random(0))
    assert found.low < 1 == found.high


@given(st.integers(1, 1000))
def test_blocks_are_consecutive_and_even(number: int) -> None:
    blocks = blocks_of(number)
    assert blocks == sorted(blocks) and len(blocks) == number
    sizes = [blocks.count(block) for block in range(blocks[-1] + 1)]
    assert max(sizes) - min(sizes) <= 1 and len(sizes) <= NUM_BLOCKS


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = random.Random(1)
    truth = NormalDist(10, 2).inv_cdf(0.5)
    covered = 0
    for _ in range(30):
        (found,) = quantile_estimates([rng.gauss(10, 2) for _ in range(100)], (0.5,), rng)
        covered += found.low <= truth <= found.high
    assert covered >= 24


def test_neighbours_that_are_alike_make_the_interval_wider() -> None:
    rng = random.Random(1)
    runs = [rng.random() < 0.5 for _ in range(20)]
    alike = [run for run in runs for _ in range(20)]
    mixed = rng.sample(alike, len(alike))
    wide, narrow = (share(good, random.Random(0)) for good in (alike, mixed))
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)

"""Engines whose honest noise has several scales and shapes, and the checks of their handoffs: as the Scheduler would
judge them, with the tolerance that it has learned so far, a third opinion, and two strikes.
"""

import math
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.messages.generation import TokenLogprob
from kvtransfer.tolerance import MARGIN, MEMORY, MIN_TOLERANCE, PRIOR_TOLERANCE, LearnedTolerance
from kvtransfer.verify import MAX_TOLERANCE, NUM_TOP, distance, verdict
from router.trust.suspected_pairs import NUM_CLEARING

Noise = Callable[[random.Random], float]
"""One rounding error of a log-probability, in nats."""

NUM_CHECKS = 10_000


def normal(scale: float) -> Noise:
    return lambda rng: rng.gauss(0.0, scale)


def laplace(scale: float) -> Noise:
    return lambda rng: rng.choice((-1, 1)) * rng.expovariate(1.0 / scale)


def experts(scale: float) -> Noise:
    """Mostly small, and larger where a router has chosen another expert."""
    return lambda rng: rng.gauss(0.0, scale * (6.0 if rng.random() < 0.02 else 1.0))


HONEST = {
    "a CPU": (normal(0.005), False),
    "bfloat16": (normal(0.05), False),
    "bfloat16 of a large model": (normal(0.12), False),
    "bfloat16 with long tails": (laplace(0.06), False),
    "FP8 KV": (normal(0.25), True),
    "experts": (experts(0.1), True),
}


def opinion(noise: Noise, rng: random.Random, wrong: float = 0.0) -> list[TokenLogprob]:
    return [TokenLogprob(i, -float(i) + noise(rng) + wrong * rng.uniform(-1.0, 1.0)) for i in range(NUM_TOP)]


class Checked:
    """One pair of workers, whose handoffs are all checked."""

    def __init__(self, noise: Noise, rng: random.Random, *, rounds_coarsely: bool) -> None:
        self.tolerance = LearnedTolerance(rounds_coarsely=rounds_coarsely)
        self.num_beyond = self.num_strikes = self.num_convictions = 0
        self._num_good = NUM_CLEARING
        """Good handoffs since the last strike."""
        self._noise, self._rng = noise, rng

    def check(self, wrong: float = 0.0) -> bool:
        """Check one handoff, whose copy is wrong by up to so many nats. Returns whether that is a strike."""
        reference = opinion(self._noise, self._rng)
        copy = opinion(self._noise, self._rng, wrong)
        apart = distance(reference, copy)
        if apart > self.tolerance.value:
            self.num_beyond += 1
            anew = opinion(self._noise, self._rng)
            found = verdict(apart, distance(reference, anew), distance(anew, copy), self.tolerance.value)
            if found.is_strike:
                self.num_strikes += 1
                self.num_convictions += self._num_good < NUM_CLEARING
                self._num_good = 0
                return True
        self._num_good += 1
        self.tolerance.observe(apart)
        return False


@pytest.mark.parametrize("name", HONEST)
def test_honest_engines_are_hardly_ever_struck_and_never_convicted(name: str) -> None:
    """From the first check on. At 3 strikes in 10,000 checks, a second one among the NUM_CLEARING after it comes once
    in 500,000 checks.
    """
    noise, coarse = HONEST[name]
    pair = Checked(noise, random.Random(name), rounds_coarsely=coarse)
    for _ in range(NUM_CHECKS):
        pair.check()
    assert pair.num_beyond <= NUM_CHECKS / 500
    assert pair.num_strikes <= 3
    assert pair.num_convictions == 0


@pytest.mark.parametrize("name", HONEST)
@pytest.mark.parametrize("num_learned", [0, 3000])
def test_copies_of_another_prompt_are_found_at_once(name: str, num_learned: int) -> None:
    noise, coarse = HONEST[name]
    pair = Checked(noise, random.Random(name), rounds_coarsely=coarse)
    for _ in range(num_learned):
        pair.check()
    assert sum(pair.check(wrong=12.0) for _ in range(1000)) >= 970


@pytest.mark.parametrize("name", ["a CPU", "bfloat16"])
def test_what_is_learned_finds_copies_that_the_prior_lets_pass(name: str) -> None:
    noise, coarse = HONEST[name]
    pair = Checked(noise, random.Random(name), rounds_coarsely=coarse)
    assert not any(pair.check(wrong=0.85) for _ in range(20))
    for _ in range(3000):
        pair.check()
    assert sum(pair.check(wrong=0.85) for _ in range(100)) >= 60


def test_model_that_rounds_more_coarsely_than_its_prior_says_is_learned_and_not_convicted() -> None:
    pair = Checked(normal(0.25), random.Random(1), rounds_coarsely=False)
    for _ in range(NUM_CHECKS):
        pair.check()
    assert pair.num_convictions == 0
    assert pair.tolerance.value == MAX_TOLERANCE


def test_prior_is_in_force_from_the_first_check() -> None:
    assert PRIOR_TOLERANCE <= LearnedTolerance(rounds_coarsely=False).value < 1.2 * PRIOR_TOLERANCE
    assert LearnedTolerance(rounds_coarsely=True).value == MAX_TOLERANCE


anything = st.floats(allow_nan=True, allow_infinity=True)


@given(st.lists(anything, max_size=50), st.booleans())
def test_no_history_leaves_the_bounds(distances: Sequence[float], coarse: bool) -> None:
    learned = LearnedTolerance(rounds_coarsely=coarse)
    for one in distances:
        learned.observe(one)
        assert MIN_TOLERANCE <= learned.value <= MAX_TOLERANCE


@given(st.sampled_from([math.inf, -1.0, math.nan, MAX_TOLERANCE * 1.01]))
def test_what_cannot_be_honest_teaches_nothing(strange: float) -> None:
    learned = LearnedTolerance(rounds_coarsely=False)
    before = learned.value
    for _ in range(1000):
        learned.observe(strange)
    assert learned.value == before


@given(st.floats(0.001, 0.6), st.integers(0, 40), st.randoms(use_true_random=False))
def test_a_few_percent_of_large_distances_do_not_widen_it(honest: float, num_large: int, rng: random.Random) -> None:
    """4 % of the samples, in any order."""
    samples = [honest] * 1000 + [MAX_TOLERANCE] * num_large
    rng.shuffle(samples)
    learned = LearnedTolerance(rounds_coarsely=False)
    for _ in range(2):
        for sample in samples:
            learned.observe(sample)
    assert learned.value <= max(MIN_TOLERANCE, 1.2 * MARGIN * honest)


def test_slow_drift_ends_at_the_bound() -> None:
    """Each distance is the largest that still passes."""
    learned = LearnedTolerance(rounds_coarsely=False)
    for _ in range(20_000):
        learned.observe(learned.value)
    assert learned.value == MAX_TOLERANCE


def test_old_samples_are_forgotten() -> None:
    learned = LearnedTolerance(rounds_coarsely=False)
    for _ in range(5000):
        learned.observe(0.5)
    assert learned.value > 1.4
    for _ in range(4 * round(MEMORY)):
        learned.observe(0.01)
    assert learned.value == MIN_TOLERANCE

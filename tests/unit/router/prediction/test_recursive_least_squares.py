import random
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.prediction.recursive_least_squares import RecursiveLeastSquares

TRUTH = (2.0, 0.5)
Sample = tuple[list[float], float]


def an_estimate(coefficients: tuple[float, ...] = (1.0, 1.0)) -> RecursiveLeastSquares:
    return RecursiveLeastSquares(coefficients, own_doubt=1.0, common_doubt=0.5)


def taught(estimate: RecursiveLeastSquares, number: int, noise: float = 0.0) -> RecursiveLeastSquares:
    chance = random.Random(1)
    for _ in range(number):
        features = [1.0, chance.uniform(0.0, 10.0)]
        exact = sum(c * f for c, f in zip(TRUTH, features, strict=True))
        estimate.update(features, exact * chance.uniform(1 - noise, 1 + noise), least=1e-3)
    return estimate


@pytest.mark.parametrize(("noise", "error"), [(0.0, 0.01), (0.1, 0.1)])
def test_coefficients_become_those_of_the_samples(noise: float, error: float) -> None:
    assert taught(an_estimate(), 300, noise).coefficients == pytest.approx(TRUTH, rel=error)


def test_one_outlier_hardly_changes_an_estimate() -> None:
    estimate = taught(an_estimate(), 300)
    estimate.update([1.0, 1.0], 100.0, least=1e-3)
    assert estimate.predict([1.0, 1.0]) == pytest.approx(2.5, rel=0.1)


def test_direction_that_no_sample_informs_about_is_not_forgotten() -> None:
    estimate = taught(an_estimate(), 300)
    for _ in range(5000):
        estimate.update([1.0, 0.0], TRUTH[0], least=1e-3)
    assert estimate.predict([0.0, 10.0]) == pytest.approx(10.0 * TRUTH[1], rel=0.05)


@pytest.mark.parametrize("measured", [nan, inf, -inf, 0.0, -1.0])
def test_measurement_without_meaning_teaches_nothing(measured: float) -> None:
    estimate = an_estimate()
    estimate.update([1.0, 1.0], measured, least=1e-3)
    assert estimate.coefficients == [1.0, 1.0]


samples = st.lists(st.tuples(st.lists(st.floats(0.0, 1e3), min_size=2, max_size=2), st.floats(1e-6, 1e6)), max_size=60)


@given(samples)
def test_no_coefficient_is_ever_negative(samples: list[Sample]) -> None:
    estimate = an_estimate()
    for features, measured in samples:
        estimate.update(features, measured, least=1e-3)
        assert all(0.0 <= coefficient < inf for coefficient in estimate.coefficients)

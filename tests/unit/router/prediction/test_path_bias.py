"""Host overheads and wrong models are told apart, and both are corrected."""

import random
from math import exp, inf, isfinite, log, nan
from statistics import fmean

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.messages.ids import Path
from cluster.messages.placement import Prediction
from router.prediction.path_bias import (
    FIRST_SOFTNESS,
    LEAST_TPOT_SOFTNESS,
    LEAST_TTFT_SOFTNESS,
    MOST_SOFTNESS,
    Bias,
    PathBias,
)
from tests.expected import present


def taught(bias: Bias, factor: float, overhead_s: float, num_requests: int, *, noise: float = 0.1) -> Bias:
    rng = random.Random(1)
    for _ in range(num_requests):
        predicted_s = exp(rng.uniform(log(0.004), log(1.0)))  # a small model's short prompts and its long ones
        outlier = 5 if rng.random() < 0.02 else 1
        bias.observe(predicted_s, (overhead_s + factor * predicted_s) * rng.lognormvariate(0, noise) * outlier)
    return bias


@pytest.mark.parametrize(
    ("factor", "overhead_s"), [(1.0, 0.0), (1.0, 0.010), (1.3, 0.0), (0.8, 0.0), (1.2, 0.020), (0.8, 0.010)]
)
def test_factor_and_overhead_are_learned_together(factor: float, overhead_s: float) -> None:
    bias = taught(Bias(0.05), factor, overhead_s, 100)
    errors = [
        abs(bias.corrected(predicted_s) / (overhead_s + factor * predicted_s) - 1)
        for predicted_s in (0.005, 0.02, 0.1, 1.0)
    ]
    assert fmean(errors) < 0.06
    assert 0.03 < present(bias.error) < 0.3


def predicted(path: Path, ttft_s: float, step_s: float, gap_s: float = 0.0) -> Prediction:
    return Prediction(path, None, None, 2.0, 2.0, 0.0, 0.0, 0.0, 0.0, ttft_s, step_s, gap_s)


def test_paths_and_figures_are_corrected_apart() -> None:
    bias = PathBias()
    for _ in range(50):
        bias.observe(predicted(Path.DECODE, 0.1, 0.02), 0.15, None, 100)
    assert bias.ttft(Path.DECODE).corrected(0.1) == pytest.approx(0.15, rel=0.05)
    assert bias.ttft(Path.PREFILL_DECODE).corrected(0.1) == 0.1
    assert bias.tpot(Path.DECODE).corrected(0.02) == 0.02
    assert bias.errors()[Path.DECODE].tpot is None
    assert present(bias.errors()[Path.DECODE].ttft) < 0.2
    bias.observe(predicted(Path.DECODE, 0.1, 0.02), None, 0.03, 100)
    assert bias.tpot(Path.DECODE).corrected(0.02) > 0.02


def test_factor_is_bounded() -> None:
    bias = taught(Bias(0.005), 100.0, 0.0, 1000)
    assert bias.factor == 2.0


@given(st.lists(st.tuples(st.floats() | st.floats(1e-3, 10), st.floats() | st.floats(1e-3, 10)), max_size=60))
def test_correction_stays_finite_and_grows_with_the_prediction_whatever_was_observed(
    pairs: list[tuple[float, float]],
) -> None:
    bias = Bias(0.05)
    for predicted_s, actual_s in pairs:
        bias.observe(predicted_s, actual_s)
    corrected = [bias.corrected(predicted_s) for predicted_s in (0.001, 0.1, 10.0)]
    assert all(isfinite(s) and s > 0 for s in corrected)
    assert corrected == sorted(corrected)


@pytest.mark.parametrize(("predicted_s", "actual_s"), [(nan, 1), (1, nan), (inf, 1), (1, inf), (0, 1), (1, 0), (-1, 1)])
def test_pair_of_no_meaning_teaches_nothing(predicted_s: float, actual_s: float) -> None:
    bias = Bias(0.05)
    bias.observe(predicted_s, actual_s)
    assert bias.corrected(0.2) == 0.2 and bias.error is None


def test_gap_before_the_second_token_is_no_bias_of_the_others() -> None:
    bias = PathBias()
    for _ in range(50):
        bias.observe(predicted(Path.PREFILL_DECODE, 0.1, 0.02, gap_s=1.0), None, 0.02 + 1.0 / 100, 101)
    assert bias.tpot(Path.PREFILL_DECODE).corrected(0.02) == pytest.approx(0.02, rel=0.01)


def test_path_that_was_unlucky_with_short_answers_is_not_closed() -> None:
    bias = PathBias()
    for _ in range(200):
        bias.observe(predicted(Path.PREFILL_DECODE, 0.1, 0.02), None, 0.5, 2)
    assert bias.tpot(Path.PREFILL_DECODE).corrected(0.02) == 0.02


def softness_after(error: float) -> tuple[float, float]:
    """Of a threshold for a TTFT and for a TPOT, after requests whose times were wrong by so much in turn."""
    bias = PathBias()
    for number in range(400):
        factor = 1.0 + error if number % 2 else 1.0 - error
        bias.observe(predicted(Path.DECODE, 1.0, 0.02), factor * 1.0, factor * 0.02, 100)
    return bias.ttft_softness, bias.tpot_softness


def test_threshold_is_as_soft_as_predictions_have_been_wrong() -> None:
    exact, usual, poor = softness_after(0.0), softness_after(0.2), softness_after(0.9)
    assert exact == (LEAST_TTFT_SOFTNESS, LEAST_TPOT_SOFTNESS)
    assert all(sharp < soft for sharp, soft in zip(exact, usual, strict=True))
    assert poor == (MOST_SOFTNESS, MOST_SOFTNESS)


def test_pair_of_no_meaning_confirms_no_prediction() -> None:
    bias = PathBias()
    for _ in range(100):
        bias.observe(predicted(Path.DECODE, 0.0, 0.0), 1.0, 1.0, 100)
    assert (bias.ttft_softness, bias.tpot_softness) == (FIRST_SOFTNESS, FIRST_SOFTNESS)


def test_time_that_a_request_waited_before_an_engine_began_is_not_corrected() -> None:
    """Engines that are exact are not taken for slow because requests waited for admission."""
    bias, waited = PathBias(), msgspec.structs.replace(predicted(Path.DECODE, 1.0, 0.02), waits_s=5.0)
    for _ in range(100):
        bias.observe(waited, 6.0, 0.02, 100)
    assert bias.ttft(Path.DECODE).corrected(1.0) == pytest.approx(1.0, rel=0.01)


def test_correction_goes_no_further_than_what_bounds_the_time() -> None:
    bias = taught(Bias(1e-3), 1.5, 0.002, 200)
    assert bias.corrected(0.010, 0.045) == bias.corrected(0.010)
    assert bias.corrected(0.040, 0.045) == pytest.approx(bias.overhead_s + 0.045)

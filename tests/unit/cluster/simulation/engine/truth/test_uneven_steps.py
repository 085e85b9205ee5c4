"""Slow and noisy step times: how large the changes are, and how often they come."""

import random
from math import log
from statistics import fmean, stdev

import pytest

from cluster.simulation.engine.truth.uneven_steps import Noise, NoisySteps, SlowSteps
from tests.unit.cluster.simulation.linear_steps import LinearSteps

TIMES = LinearSteps()
STEP_S = TIMES.step_s(500, 0.0, 0, 0)


def steps_s(number: int, **noise: float) -> list[float]:
    times = NoisySteps(TIMES, Noise(**noise), random.Random(1))
    return [times.step_s(500, 0.0, 0, 0) for _ in range(number)]


def test_equal_steps_differ_by_a_log_normal_factor_whose_mean_is_one() -> None:
    drawn = steps_s(4000, sigma=0.2)
    assert fmean(drawn) == pytest.approx(STEP_S, rel=0.02)
    assert stdev(map(log, drawn)) == pytest.approx(0.2, rel=0.05)


def test_share_of_the_steps_stalls() -> None:
    drawn = steps_s(4000, stall_share=0.05, stall_s=0.3)
    assert set(drawn) == {STEP_S, STEP_S + 0.3}
    assert drawn.count(STEP_S + 0.3) / 4000 == pytest.approx(0.05, abs=0.01)


def test_each_run_has_its_own_noise() -> None:
    times = NoisySteps(TIMES, Noise(sigma=0.2), random.Random(1))
    runs_s = [times.decode_run_s(4, context, 50) / TIMES.decode_run_s(4, context, 50) for context in range(1000, 1500)]
    assert stdev(map(log, runs_s)) == pytest.approx(0.2, rel=0.1)


def test_run_after_a_prompt_is_another_run() -> None:
    times = NoisySteps(TIMES, Noise(sigma=0.2), random.Random(1))
    before_s = times.decode_run_s(4, 1000, 50)
    prompt_factor = times.step_s(500, 0.0, 4, 1000) / TIMES.step_s(500, 0.0, 4, 1000)
    after_s = times.decode_run_s(4, 1000, 50)
    assert after_s != before_s
    assert after_s != pytest.approx(prompt_factor * TIMES.decode_run_s(4, 1000, 50))


def test_slow_steps_take_the_factor_of_the_time() -> None:
    slow = SlowSteps(TIMES, 1.5)
    assert slow.step_s(500, 0.0, 3, 900) == 1.5 * TIMES.step_s(500, 0.0, 3, 900)
    assert slow.decode_run_s(3, 900, 40) == 1.5 * TIMES.decode_run_s(3, 900, 40)


@pytest.mark.parametrize("noise", [{"sigma": -0.1}, {"sigma": 2.0}, {"sigma": float("nan")}, {"stall_share": 1.5}])
def test_noise_out_of_range_is_refused(noise: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"between 0 and 1|share from 0 to 1"):
        Noise(**noise)

"""What all step times of simulated engines have in common, without and with noise."""

import random
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cluster.simulation.engine.engine_setting import EngineSetting, StepTimes
from cluster.simulation.engine.single_engine import EngineArrival, serve
from cluster.simulation.engine.truth.tiled_steps import SHORT_CONTEXT_TOKENS, TiledSteps
from cluster.simulation.engine.truth.uneven_steps import Noise, NoisySteps, SlowSteps
from router.prediction.hardware import H100, QWEN3_30B_A3B, QWEN3_32B
from router.prediction.roofline import step_model
from router.prediction.step_model import prompt_attention
from tests.unit.cluster.simulation.engine.truth.tables import TABLE

ROOFLINE = step_model(QWEN3_32B, H100, tensor_parallel=2)
NOISE = Noise(sigma=0.3, stall_share=0.2, stall_s=0.5)
FORMS: dict[str, StepTimes] = {
    "roofline": ROOFLINE,
    "tiled": TiledSteps(ROOFLINE),
    "tiled mixture": TiledSteps(step_model(QWEN3_30B_A3B, H100)),
    "table": TABLE,
}
EVEN = FORMS | {"slow tiled": SlowSteps(FORMS["tiled"], 1.7)}


def noisy(name: str, seed: int) -> StepTimes:
    return NoisySteps(EVEN[name], NOISE, random.Random(seed))


SIZES = st.integers(1, 300)
CONTEXTS = st.integers(0, 300_000)


@pytest.mark.parametrize("name", EVEN)
@given(
    new=st.integers(0, 4000),
    cached=st.integers(0, 50_000),
    decoding=st.integers(0, 300),
    context=CONTEXTS,
    more=st.tuples(st.integers(0, 300), st.integers(0, 300), st.integers(0, 5000)),
)
def test_more_work_takes_no_less_time(
    name: str, new: int, cached: int, decoding: int, context: int, more: tuple[int, int, int]
) -> None:
    times = EVEN[name]
    context = context if decoding else 0
    before_s = times.step_s(new, prompt_attention(new, cached), decoding, context)
    new, decoding = new + more[0], decoding + more[1]
    context += more[2] if decoding else 0
    assert times.step_s(new, prompt_attention(new, cached), decoding, context) >= before_s * (1 - 1e-12)


@pytest.mark.parametrize("name", EVEN)
@given(decoding=SIZES, context=CONTEXTS, steps=st.integers(1, 300))
@example(decoding=7, context=SHORT_CONTEXT_TOKENS - 500, steps=300)
def test_run_of_decode_steps_takes_what_its_steps_take(name: str, decoding: int, context: int, steps: int) -> None:
    times = EVEN[name]
    one_by_one_s = sum(times.step_s(0, 0.0, decoding, context + k * decoding) for k in range(steps))
    assert times.decode_run_s(decoding, context, steps) == pytest.approx(one_by_one_s, rel=1e-9)


@pytest.mark.parametrize("make", [lambda name, _: EVEN[name], noisy], ids=["even", "noisy"])
@pytest.mark.parametrize("name", EVEN)
@given(decoding=SIZES, context=CONTEXTS, seconds=st.floats(0, 100), seed=st.integers(0, 9))
def test_most_steps_that_fit_into_a_time_are_found(
    make: Callable[[str, int], StepTimes], name: str, decoding: int, context: int, seconds: float, seed: int
) -> None:
    times = make(name, seed)
    steps = times.decode_steps_within(decoding, context, seconds)
    assert times.decode_run_s(decoding, context, steps) <= seconds
    assert times.decode_run_s(decoding, context, steps + 1) > seconds


@pytest.mark.parametrize("name", EVEN)
@given(decoding=SIZES, context=CONTEXTS, steps=st.integers(1, 1000), seed=st.integers(0, 9))
def test_steps_of_a_noisy_run_end_when_the_run_says(
    name: str, decoding: int, context: int, steps: int, seed: int
) -> None:
    times = noisy(name, seed)
    run_s = times.decode_run_s(decoding, context, steps)
    assert times.decode_steps_within(decoding, context, run_s) == steps
    assert times.step_s(0, 0.0, decoding, context) == times.decode_run_s(decoding, context, 1) <= run_s
    assert times.decode_run_s(decoding, context, steps) == run_s


@pytest.mark.parametrize("name", EVEN)
def test_engine_serves_with_noise_and_gives_the_same_times_for_the_same_seed(name: str) -> None:
    arrivals = [EngineArrival(0.07 * number, 100 + 37 * number, 1 + number) for number in range(60)]

    def last_tokens(seed: int) -> list[float]:
        served = serve(EngineSetting(kv_capacity_tokens=30_000), noisy(name, seed), arrivals)
        assert all(arrival.at_s < one.first_at <= one.last_at for arrival, one in zip(arrivals, served, strict=True))
        return [one.last_at for one in served]

    assert last_tokens(1) == last_tokens(1) != last_tokens(2)

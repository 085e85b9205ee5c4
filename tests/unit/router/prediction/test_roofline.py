"""The roofline model against its worked example: Qwen3-32B on two H100."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.prediction import hardware
from router.prediction.roofline import kv_capacity_tokens, step_model
from router.prediction.step_model import StepModel, prompt_attention

EXAMPLE = step_model(hardware.QWEN3_32B, hardware.H100, tensor_parallel=2)
MIXTURE = step_model(hardware.QWEN3_30B_A3B, hardware.H100)


@pytest.mark.parametrize(
    ("prompt", "milliseconds"), [(512, 29), (2048, 109), (8192, 479), (32768, 2771), (131072, 24746)]
)
def test_prefill_takes_what_the_example_says(prompt: int, milliseconds: int) -> None:
    assert EXAMPLE.prefill_s(prompt, 0, 8192) * 1e3 == pytest.approx(milliseconds, rel=0.01)


@pytest.mark.parametrize(
    ("decoding", "context", "milliseconds"),
    [(1, 1024, 15.2), (32, 2048, 19.2), (32, 8192, 30.2), (128, 1024, 24.3), (256, 1024, 33.4)],
)
def test_decode_step_takes_what_the_example_says(decoding: int, context: int, milliseconds: float) -> None:
    assert EXAMPLE.decode_s(decoding, decoding * context) * 1e3 == pytest.approx(milliseconds, rel=0.01)


@pytest.mark.parametrize(
    ("chunk", "milliseconds"), [(0, 23), (256, 25), (512, 38), (1024, 64), (2048, 118), (8192, 489)]
)
def test_mixed_step_takes_what_the_example_says(chunk: int, milliseconds: int) -> None:
    seconds = EXAMPLE.step_s(chunk, prompt_attention(chunk, 0), 32, 32 * 4096)
    assert seconds * 1e3 == pytest.approx(milliseconds, rel=0.02)


def test_kv_cache_holds_what_the_example_says() -> None:
    assert kv_capacity_tokens(hardware.QWEN3_32B, hardware.H100, tensor_parallel=2) == pytest.approx(316_963, rel=0.001)


@pytest.mark.parametrize(
    ("name", "num_bytes"),
    [
        ("llama-3.1-8b", 131_072),
        ("qwen3-8b", 147_456),
        ("qwen3-14b", 163_840),
        ("qwen3-32b", 262_144),
        ("llama-3-70b", 327_680),
        ("qwen2.5-72b", 327_680),
        ("llama-3.1-405b", 516_096),
        ("qwen3-30b-a3b", 98_304),
        ("qwen3-235b-a22b", 192_512),
        ("mixtral-8x7b", 131_072),
        ("opt-13b", 819_200),
        ("opt-66b", 2_359_296),
    ],
)
def test_tokens_take_the_kv_bytes_that_are_published(name: str, num_bytes: int) -> None:
    assert hardware.MODELS[name].kv_bytes_per_token == num_bytes


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("qwen3-14b", 14.8),
        ("qwen3-32b", 32.8),
        ("llama-3-70b", 70.6),
        ("qwen3-30b-a3b", 30.5),
        ("mixtral-8x7b", 46.7),
    ],
)
def test_models_have_the_weights_that_are_published(name: str, billions: float) -> None:
    shape = hardware.MODELS[name]
    assert shape.num_bytes / shape.bytes_per_weight / 1e9 == pytest.approx(billions, rel=0.01)


@pytest.mark.parametrize("model", [EXAMPLE, MIXTURE])
@given(
    new=st.integers(1, 20_000),
    cached=st.integers(0, 20_000),
    limit=st.integers(64, 9000),
    decoding=st.integers(0, 40),
)
def test_prefill_is_the_sum_of_its_steps(model: StepModel, new: int, cached: int, limit: int, decoding: int) -> None:
    context, past, left, total = 1000.0 * decoding, cached, new, 0.0
    while left:
        chunk = min(left, limit)
        total += model.step_s(chunk, prompt_attention(chunk, past), decoding, context)
        left, past, context = left - chunk, past + chunk, context + decoding
    assert model.prefill_s(new, cached, limit, decoding, 1000.0 * decoding) == pytest.approx(total, rel=1e-9)


@given(decoding=st.integers(1, 256), context=st.integers(0, 300_000), steps=st.integers(0, 300))
def test_run_of_decode_steps_is_their_sum(decoding: int, context: int, steps: int) -> None:
    total = sum(EXAMPLE.decode_s(decoding, context + decoding * step) for step in range(steps))
    assert EXAMPLE.decode_run_s(decoding, context, steps) == pytest.approx(total, rel=1e-9)


@given(decoding=st.integers(1, 256), context=st.integers(0, 300_000), seconds=st.floats(-1, 100))
def test_no_more_steps_fit_than_the_run_takes(decoding: int, context: int, seconds: float) -> None:
    steps = EXAMPLE.decode_steps_within(decoding, context, seconds)
    assert steps == 0 or EXAMPLE.decode_run_s(decoding, context, steps) <= seconds
    assert EXAMPLE.decode_run_s(decoding, context, steps + 1) > seconds


def test_few_tokens_read_few_experts() -> None:
    assert MIXTURE.decode_s(1, 1000) < MIXTURE.decode_s(16, 1000) < MIXTURE.decode_s(256, 1000)
    assert MIXTURE.decode_s(256, 1000) < 20 * MIXTURE.decode_s(1, 1000)

"""The shape of TiledSteps, and its level beside that of the roofline."""

import pytest

from cluster.simulation.engine.truth.tiled_steps import TiledSteps, captured, tiled
from router.prediction.hardware import H100, QWEN3_32B
from router.prediction.roofline import step_model
from router.prediction.step_model import prompt_attention

ROOFLINE = step_model(QWEN3_32B, H100, tensor_parallel=2)
TILED = TiledSteps(ROOFLINE)


def prompt_s(num_new: int) -> float:
    return TILED.step_s(num_new, 0.0, 0, 0)


@pytest.mark.parametrize(
    ("num_decoding", "size"),
    [(1, 1), (3, 4), (5, 8), (9, 16), (17, 24), (250, 256), (257, 272), (512, 512), (600, 600)],
)
def test_decode_batches_are_padded_to_captured_sizes(num_decoding: int, size: int) -> None:
    assert captured(num_decoding) == size


@pytest.mark.parametrize(("tokens", "padded"), [(1, 64), (65, 128), (512, 512), (513, 640), (2049, 2304)])
def test_tokens_are_padded_to_tiles(tokens: int, padded: int) -> None:
    assert tiled(tokens) == padded


def test_time_jumps_between_tiles_and_stays_within_one() -> None:
    within_s, beyond_s = prompt_s(1024) - prompt_s(1023), prompt_s(1025) - prompt_s(1024)
    assert beyond_s > 0 and within_s < beyond_s / 100


def test_knee_is_round() -> None:
    """Far from the knee the products take what the roofline says; at the knee they take longer."""
    at_knee = round(ROOFLINE.knee_tokens) // 64 * 64
    ratios = [prompt_s(num) / ROOFLINE.step_s(num, 0.0, 0, 0) for num in (64, at_knee, 4096)]
    assert ratios[1] > 1.1 * max(ratios[0], ratios[2])


def test_short_contexts_are_read_at_a_lower_rate() -> None:
    def context_s(tokens: int) -> float:
        return TILED.decode_run_s(8, tokens, 1) - TILED.decode_run_s(8, 0, 1)

    assert context_s(20_000) / 20_000 > ROOFLINE.context_s > context_s(400_000) / 400_000


@pytest.mark.parametrize("num_new", [0, 64, 256, 512, 1024, 2048])
@pytest.mark.parametrize(("num_decoding", "context"), [(0, 0), (1, 1000), (16, 30_000), (64, 200_000), (256, 400_000)])
def test_level_is_that_of_the_roofline(num_new: int, num_decoding: int, context: int) -> None:
    work = num_new, prompt_attention(num_new, 0), num_decoding, context
    if num_new or num_decoding:
        assert 0.75 < TILED.step_s(*work) / ROOFLINE.step_s(*work) < 1.45


def test_padded_tokens_and_batches_take_time() -> None:
    """Nine requests are computed as sixteen, and so are sixteen. What remains is the work of each request."""
    tokens_s = TILED.decode_run_s(16, 0, 1) - TILED.decode_run_s(9, 0, 1)
    assert tokens_s == pytest.approx(7 * ROOFLINE.request_s)
    assert TILED.decode_run_s(17, 0, 1) - TILED.decode_run_s(16, 0, 1) > 2 * ROOFLINE.request_s

"""Prompts of one step divide its time, or its tokens where nothing bounds its time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.prediction.step_chunk import LEAST_CHUNK
from router.prediction.step_model import StepModel, prompt_attention
from router.prediction.step_room import StepRoom
from tests.unit.router.prediction.step_models import MIXTURE, MODEL


@pytest.mark.parametrize("model", [MODEL, MIXTURE])
@given(
    num_decoding=st.integers(1, 200),
    seconds=st.floats(1e-4, 0.2),
    prompts=st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 150_000)), min_size=1, max_size=6),
)
def test_prompts_of_a_step_divide_its_time(
    model: StepModel, num_decoding: int, seconds: float, prompts: list[tuple[int, int]]
) -> None:
    room = StepRoom(model, 8192, num_decoding, seconds)
    taken = []
    for num_left, context in prompts:
        num_new = min(room.tokens(context), num_left)
        room.take(num_new, context)
        taken.append((num_new, context))
    num_new, attended = sum(num for num, _ in taken), sum(prompt_attention(*each) for each in taken)
    assert num_new >= min(LEAST_CHUNK, prompts[0][0])
    added_s = model.step_s(num_new, attended, num_decoding, 0) - model.decode_s(num_decoding, 0)
    at_least_s = model.added_s(LEAST_CHUNK, num_decoding, max(context for _, context in prompts))
    assert added_s <= max(seconds, at_least_s) * (1 + 1e-6)


def test_step_without_a_bound_of_time_has_a_number_of_tokens_for_all_prompts() -> None:
    room = StepRoom(MODEL, 1000)
    assert not room.is_bounded
    assert room.tokens(100_000) == 1000
    room.take(300, 100_000)
    assert room.tokens(0) == 700

"""A step with prompts is as long as the objectives of the decoding requests allow, and no prompt is starved."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.prediction.step_chunk import (
    LEAST_CHUNK,
    LEAST_OF_TPOT,
    LEAST_STRETCH,
    LOST_STRETCH,
    MOST_OF_TPOT,
    StepBound,
    chunk_tokens,
)
from router.prediction.step_model import StepModel, prompt_attention
from tests.unit.router.prediction.step_models import MIXTURE, MODEL

BOUND = StepBound(0.0)


def chunk(tpot_s: float, num_decoding: int = 20, context: int = 40_000, before: float = 0.0) -> int:
    decode_s = MODEL.decode_s(num_decoding, context)
    return chunk_tokens(MODEL, num_decoding, BOUND.longest_step_s(decode_s, tpot_s) - decode_s, before)


def test_loose_objective_has_more_tokens_beside_decodes_than_a_tight_one() -> None:
    assert chunk(0.030) < chunk(0.050) < chunk(0.100)


def test_tokens_that_attend_to_a_long_context_are_fewer() -> None:
    assert chunk(0.050, before=100_000) < chunk(0.050, before=0) / 2


@pytest.mark.parametrize("model", [MODEL, MIXTURE])
@given(
    num_decoding=st.integers(1, 500),
    context=st.integers(1, 500_000),
    tpot_s=st.floats(1e-4, 1.0),
    before=st.integers(0, 200_000),
)
def test_step_is_no_longer_than_the_objective_allows_and_no_prompt_stands_still(
    model: StepModel, num_decoding: int, context: int, tpot_s: float, before: int
) -> None:
    decode_s = model.decode_s(num_decoding, context)
    tokens = chunk_tokens(model, num_decoding, BOUND.longest_step_s(decode_s, tpot_s) - decode_s, before)
    assert tokens >= LEAST_CHUNK
    if tokens > LEAST_CHUNK:
        step_s = model.step_s(tokens, prompt_attention(tokens, before), num_decoding, context)
        assert step_s <= BOUND.longest_step_s(decode_s, tpot_s) * (1 + 1e-6)
        if decode_s < BOUND.share * tpot_s:
            assert step_s <= max(tpot_s, LEAST_STRETCH * decode_s) * (1 + 1e-6)


def test_prompts_have_a_share_of_each_step_whatever_the_objective() -> None:
    assert BOUND.longest_step_s(0.010, 0.040) == MOST_OF_TPOT * 0.040
    assert BOUND.longest_step_s(0.036, 0.040) == LEAST_STRETCH * 0.036
    assert BOUND.longest_step_s(0.050, 0.040) == LOST_STRETCH * 0.050


@given(decode_s=st.floats(1e-3, 0.2), tpot_s=st.floats(1e-3, 0.2), error=st.floats(0.0, 1.0))
def test_small_error_of_a_predicted_step_changes_the_bound_by_little(
    decode_s: float, tpot_s: float, error: float
) -> None:
    bound = StepBound(error)
    was_s, longer_s = bound.longest_step_s(decode_s, tpot_s), bound.longest_step_s(1.01 * decode_s, tpot_s)
    assert was_s <= longer_s <= 1.25 * was_s


def test_objective_that_bounds_steps_most_binds() -> None:
    assert BOUND.binding_tpot_s([0.001, 0.012, 0.100], 0.010) == 0.012
    assert BOUND.binding_tpot_s([0.001, 0.030, 0.100], 0.010) == 0.001
    assert BOUND.binding_tpot_s([0.020, inf], 0.010) == 0.020
    assert BOUND.binding_tpot_s([], 0.010) == inf


def test_one_client_with_any_objective_leaves_prompts_their_share_of_a_step() -> None:
    for objective_s in (1e-6, 0.0099, 0.0101, 0.011, 0.013):
        step_s = BOUND.longest_step_s(0.010, BOUND.binding_tpot_s([objective_s, 0.100], 0.010))
        assert LEAST_STRETCH * 0.010 <= step_s <= LOST_STRETCH * 0.010


def test_answer_that_has_just_become_late_is_not_given_up() -> None:
    just_kept_s, just_lost_s = (
        BOUND.longest_step_s(decode_s, BOUND.binding_tpot_s([0.030, 0.200], decode_s)) for decode_s in (0.0299, 0.0301)
    )
    assert just_lost_s < 2 * just_kept_s


def test_steps_are_shorter_and_their_lengths_less_certain_where_predictions_are_poor() -> None:
    several = [StepBound(error) for error in (0.0, 0.07, 0.5)]
    assert [bound.share for bound in several] == [MOST_OF_TPOT, 1.0 - 0.07, LEAST_OF_TPOT]
    assert several[0].softness < several[1].softness < several[2].softness
    assert StepBound().share == LEAST_OF_TPOT

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.messages.generation import TokenLogprob
from cluster.messages.scheduler_events import HandoffVerdict
from kvtransfer.verify import MAX_TOLERANCE, NUM_TOP, SEPARATION, distance, verdict


def top(*logprobs: float, first_id: int = 0) -> list[TokenLogprob]:
    return [TokenLogprob(first_id + rank, logprob) for rank, logprob in enumerate(logprobs)]


REFERENCE = top(-0.1, -2.0, -4.0, -5.0, -6.0)
TOLERANCE = 0.5


@given(st.lists(st.floats(-TOLERANCE / 2, TOLERANCE / 2), min_size=NUM_TOP, max_size=NUM_TOP))
def test_rounding_is_near(noise: list[float]) -> None:
    observed = top(*(t.logprob + n for t, n in zip(REFERENCE, noise, strict=True)))
    assert distance(REFERENCE, observed) <= TOLERANCE


@given(st.integers(0, NUM_TOP - 1), st.floats(TOLERANCE * 1.01, 20) | st.floats(-20, -TOLERANCE * 1.01))
def test_one_token_that_is_off_is_the_distance(rank: int, error: float) -> None:
    observed = [t.logprob + (error if i == rank else 0.0) for i, t in enumerate(REFERENCE)]
    assert distance(REFERENCE, top(*observed)) == pytest.approx(abs(error))


def test_unlikely_tokens_may_swap_places() -> None:
    observed = [*REFERENCE[:3], TokenLogprob(77, -5.5), TokenLogprob(78, -6.0)]
    assert distance(REFERENCE, observed) == 0.0


@pytest.mark.parametrize(
    "observed",
    [top(-0.1, -2.0, -4.0, first_id=50), REFERENCE[1:], REFERENCE[:2], []],
    ids=["other tokens", "the best one is missing", "too few in common", "none"],
)
def test_other_tokens_are_infinitely_far_away(observed: list[Any]) -> None:
    assert math.isinf(distance(REFERENCE, observed))


def test_everything_is_infinitely_far_from_no_reference() -> None:
    assert math.isinf(distance([], REFERENCE))


@given(st.integers(0, NUM_TOP - 1), st.sampled_from([math.nan, math.inf, -math.inf]), st.booleans())
def test_engine_that_gives_no_numbers_is_infinitely_far_away(rank: int, broken: float, is_reference: bool) -> None:
    observed = [*REFERENCE]
    observed[rank] = TokenLogprob(rank, broken)
    pair = (observed, REFERENCE) if is_reference else (REFERENCE, observed)
    assert math.isinf(distance(*pair))


near = st.floats(0.0, TOLERANCE)


@given(near, st.floats(1.0, 2.0))
def test_odd_one_out_is_found(rounding: float, scale: float) -> None:
    """The odd one is far from both others, about equally, and these are as near to each other as rounding is."""
    far = scale * max(2 * TOLERANCE, 2 * SEPARATION * rounding)
    assert verdict(far, rounding, far, TOLERANCE) is HandoffVerdict.COPY_WRONG
    assert verdict(far, far, rounding, TOLERANCE) is HandoffVerdict.PREFILL_WRONG


@given(st.floats(0.1, MAX_TOLERANCE / 2), st.tuples(*[st.floats(1.0, 2.0)] * 3))
def test_three_that_are_about_equally_far_apart_are_rounding(scale: float, parts: tuple[float, float, float]) -> None:
    check, prefill, copy = (scale * part for part in parts)
    assert verdict(check, prefill, copy, TOLERANCE) is HandoffVerdict.CLEARED


@given(st.floats(TOLERANCE, 100) | st.just(math.inf))
def test_nobody_is_blamed_by_a_third_opinion_that_has_nothing_in_common_with_them(check: float) -> None:
    assert verdict(check, math.inf, math.inf, TOLERANCE) is HandoffVerdict.UNCLEAR


@given(*[st.floats(0, 30) | st.just(math.inf)] * 3, st.floats(0.3, MAX_TOLERANCE))
def test_nobody_who_is_near_both_others_is_blamed(check: float, prefill: float, copy: float, tolerance: float) -> None:
    found = verdict(check, prefill, copy, tolerance)
    if found is HandoffVerdict.COPY_WRONG:
        assert min(check, copy) > SEPARATION * prefill
        assert copy > tolerance
    elif found is HandoffVerdict.PREFILL_WRONG:
        assert min(check, prefill) > SEPARATION * copy
        assert prefill > tolerance
    elif found is HandoffVerdict.CLEARED:
        assert max(check, prefill, copy) <= MAX_TOLERANCE

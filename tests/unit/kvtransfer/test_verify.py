import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.messages.generation import TokenLogprob
from kvtransfer.verify import NUM_TOP, TOLERANCE, agrees, distance


def top(*logprobs: float, first_id: int = 0) -> list[TokenLogprob]:
    return [TokenLogprob(first_id + rank, logprob) for rank, logprob in enumerate(logprobs)]


REFERENCE = top(-0.1, -2.0, -4.0, -5.0, -6.0)


@given(st.lists(st.floats(-TOLERANCE / 2, TOLERANCE / 2), min_size=NUM_TOP, max_size=NUM_TOP))
def test_rounding_agrees(noise: list[float]) -> None:
    assert agrees(distance(REFERENCE, top(*(t.logprob + n for t, n in zip(REFERENCE, noise, strict=True)))))


@given(st.integers(0, NUM_TOP - 1), st.floats(TOLERANCE * 1.01, 20) | st.floats(-20, -TOLERANCE * 1.01))
def test_one_token_that_is_off_differs(rank: int, error: float) -> None:
    observed = [t.logprob + (error if i == rank else 0.0) for i, t in enumerate(REFERENCE)]
    assert not agrees(distance(REFERENCE, top(*observed)))
    assert distance(REFERENCE, top(*observed)) == pytest.approx(abs(error))


def test_unlikely_tokens_may_swap_places() -> None:
    observed = [*REFERENCE[:3], TokenLogprob(77, -5.5), TokenLogprob(78, -6.0)]
    assert agrees(distance(REFERENCE, observed))


@pytest.mark.parametrize(
    "observed",
    [top(-0.1, -2.0, -4.0, first_id=50), REFERENCE[1:], REFERENCE[:2], []],
    ids=["other tokens", "the best one is missing", "too few in common", "none"],
)
def test_other_tokens_are_infinitely_far_away(observed: list[Any]) -> None:
    assert math.isinf(distance(REFERENCE, observed))


def test_nothing_agrees_with_no_reference() -> None:
    assert not agrees(distance([], REFERENCE))

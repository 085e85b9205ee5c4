from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.messages.generation import TokenDelta
from cluster.metrics.buckets import GAP_BUCKETS_S
from router.session.timing import Timing
from tests.expected import present


def test_ttft_is_the_first_token_and_tpot_the_mean_gap_after_it() -> None:
    timing = Timing(arrived_at=100.0)
    timing.released(TokenDelta(0, []), now=100.1)
    assert timing.ttft_s is None
    assert timing.age_s(100.2) == pytest.approx(0.2)
    timing.released(TokenDelta(0, [1]), now=100.5)
    timing.released(TokenDelta(0, [2, 3]), now=101.5)
    assert (timing.ttft_s, timing.tpot_s) == pytest.approx((0.5, 0.5))


def test_single_token_has_no_tpot() -> None:
    timing = Timing(arrived_at=0.0)
    timing.released(TokenDelta(0, [1]), now=1.0)
    assert (timing.ttft_s, timing.tpot_s) == (1.0, None)


def test_tpot_follows_the_first_of_several_sequences() -> None:
    timing = Timing(arrived_at=0.0)
    for now in (1.0, 2.0, 3.0):
        timing.released(TokenDelta(0, [1]), now)
        timing.released(TokenDelta(1, [1]), now)
    assert timing.tpot_s == pytest.approx(1.0)


def test_tokens_of_all_sequences_are_counted() -> None:
    timing = Timing(arrived_at=0.0)
    for delta in (TokenDelta(0, [1]), TokenDelta(1, [2, 3]), TokenDelta(0, [])):
        timing.released(delta, 1.0)
    assert timing.num_output_tokens == 3


def test_tokens_that_come_together_share_the_gap_before_them() -> None:
    timing = Timing(arrived_at=0.0)
    timing.released(TokenDelta(0, [1, 2]), 1.0)
    timing.released(TokenDelta(0, [3]), 1.018)
    timing.released(TokenDelta(1, [9]), 1.03)
    timing.released(TokenDelta(0, [4, 5, 6, 7]), 1.378)
    gaps = present(timing.gaps)
    found = {GAP_BUCKETS_S[bucket]: count for bucket, count in enumerate(gaps.counts) if count}
    assert found == {0.02: 1, 0.1: 4}
    assert gaps.total_s == pytest.approx(0.378)


def test_tokens_that_all_come_together_have_no_gaps() -> None:
    timing = Timing(arrived_at=0.0)
    timing.released(TokenDelta(0, [1, 2]), 1.0)
    assert timing.gaps is None


@given(st.lists(st.tuples(st.floats(0.0, 20.0), st.integers(1, 5)), min_size=2, max_size=20))
def test_each_token_after_the_first_ones_has_a_gap(deltas: list[tuple[float, int]]) -> None:
    timing, now = Timing(arrived_at=0.0), 0.0
    expected = [0] * (len(GAP_BUCKETS_S) + 1)
    for number, (gap_s, num_tokens) in enumerate(deltas):
        before, now = now, now + gap_s
        timing.released(TokenDelta(0, list(range(num_tokens))), now)
        expected[bisect_left(GAP_BUCKETS_S, (now - before) / num_tokens)] += num_tokens if number else 0
    assert list(present(timing.gaps).counts) == expected

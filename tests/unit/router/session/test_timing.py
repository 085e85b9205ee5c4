import pytest

from cluster.messages.generation import TokenDelta
from router.session.timing import Timing


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

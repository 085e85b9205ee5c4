import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.load.prefill_share import MOST, WINDOWS_S, PrefillShare, lately, share_over


def test_it_is_the_share_of_stalls_in_each_window() -> None:
    prefill_share = PrefillShare()
    for number in range(600):
        prefill_share.note(0.02, number * 0.1)
    assert prefill_share.shares(60.0) == pytest.approx([0.2] * 3, rel=0.1)
    short, _, long = prefill_share.shares(61.0)
    assert short < long < 0.2


@given(st.lists(st.tuples(st.floats(0.0, 1e3), st.floats(0.0, 50.0)), max_size=30))
def test_it_leaves_some_time_for_decoding(stalls: list[tuple[float, float]]) -> None:
    prefill_share, now = PrefillShare(), 0.0
    for stall_s, wait_s in stalls:
        now += wait_s
        prefill_share.note(stall_s, now)
        assert all(0.0 <= share <= MOST for share in prefill_share.shares(now))


def test_long_horizon_expects_the_share_of_a_long_window() -> None:
    shares = (0.1, 0.2, 0.3)
    horizons = [0.0, *WINDOWS_S, 1e9]
    assert [share_over(shares, horizon_s) for horizon_s in horizons] == [0.1, 0.1, 0.2, 0.3, 0.3]


def test_share_over_the_last_seconds_is_that_of_the_middle_window() -> None:
    assert lately((0.1, 0.2, 0.3)) == 0.2


def test_worker_whose_last_stall_is_long_ago_is_free_of_prompts() -> None:
    prefill_share = PrefillShare()
    prefill_share.note(1.0, 0.0)
    assert min(prefill_share.shares(1.0)) > 0.0
    for now in (300.0, 301.0):
        prefill_share.shares(now)
    assert prefill_share.shares(301.0) == (0.0, 0.0, 0.0)
    prefill_share.note(0.1, 302.0)
    assert prefill_share.shares(302.0) == pytest.approx((0.1, 0.1 / 3, 0.01))

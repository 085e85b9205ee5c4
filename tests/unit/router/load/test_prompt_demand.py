"""How much time of later prompts is expected to come before a prompt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.load.prompt_demand import WINDOW_S, PromptDemand, overtaking_s


def demand_of(ttft_s: float, share: float, until_s: float = 200.0) -> PromptDemand:
    """Ten prompts a second that take this share of the workers' time."""
    demand = PromptDemand()
    for number in range(round(10 * until_s)):
        demand.note(ttft_s, share / 10, number / 10)
    return demand


def test_nothing_is_expected_before_the_first_prompt() -> None:
    assert PromptDemand().at(5.0) == []


def test_steady_demand_is_its_share_of_the_time() -> None:
    ((ttft_s, share),) = demand_of(1.0, 0.4).at(200.0)
    assert share == pytest.approx(0.4, rel=0.05)
    assert 0.5 <= ttft_s <= 2.0


def test_demand_of_a_few_seconds_counts_as_much_as_that_of_minutes() -> None:
    ((_, share),) = demand_of(1.0, 0.4, until_s=5.0).at(5.0)
    assert share == pytest.approx(0.4, rel=0.1)


def test_demand_is_forgotten() -> None:
    assert demand_of(1.0, 0.4).at(200.0 + 20 * WINDOW_S) == []


def test_urgent_prompts_overtake_a_long_one_until_they_would_be_due_after_it() -> None:
    demand = demand_of(1.0, 0.4).at(200.0)
    assert overtaking_s(demand, done_s=2.0, left_s=30.0) == pytest.approx(0.4 * 2.8, rel=0.05)
    assert overtaking_s(demand, done_s=10.0, left_s=4.0) < 0.4 * 3.5
    assert overtaking_s(demand, done_s=0.2, left_s=0.4) == 0.0


@given(st.floats(0.01, 200.0), st.floats(0.0, 2.0), st.floats(0.0, 100.0), st.floats(-10.0, 100.0))
def test_later_prompts_take_no_more_than_their_share(ttft_s: float, share: float, done_s: float, left_s: float) -> None:
    seconds = overtaking_s([(ttft_s, share)], done_s, left_s)
    assert 0.0 <= seconds <= share * max(0.0, left_s - ttft_s) + 1e-9
    assert seconds <= share * (done_s + share * done_s) + 1e-9

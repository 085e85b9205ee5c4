"""How much time of later prompts is expected to come before a prompt."""

from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.load.prompt_demand import LEAST_SEEN_S, MOST_DEMAND, WINDOW_S, PromptDemand, overtaking_s


def demand_of(ttft_s: float, share: float, until_s: float = 200.0) -> PromptDemand:
    """Ten prompts a second that take this share of the workers' time."""
    demand = PromptDemand()
    for number in range(round(10 * until_s)):
        demand.note(ttft_s, share / 10, number / 10)
    return demand


def test_nothing_is_expected_before_the_first_prompt() -> None:
    assert PromptDemand().at(5.0, 1) == []


def test_steady_demand_is_its_share_of_the_time() -> None:
    ((ttft_s, share),) = demand_of(1.0, 0.4).at(200.0, 1)
    assert share == pytest.approx(0.4, rel=0.05)
    assert 0.5 <= ttft_s <= 2.0


def test_demand_of_a_few_seconds_counts_as_much_as_that_of_minutes() -> None:
    ((_, share),) = demand_of(1.0, 0.4, until_s=5.0).at(5.0, 1)
    assert share == pytest.approx(0.4, rel=0.1)


def test_demand_is_forgotten() -> None:
    assert demand_of(1.0, 0.4).at(200.0 + 20 * WINDOW_S, 1) == []


def test_first_prompt_is_not_taken_for_a_steady_stream() -> None:
    demand = PromptDemand()
    demand.note(1.0, 0.25, 10.0)
    ((_, share),) = demand.at(10.0, 1)
    assert share < 1.3 * 0.25 / LEAST_SEEN_S


def test_prompts_take_no_more_than_the_workers_have() -> None:
    demand = demand_of(1.0, 30.0)
    for _ in range(100):
        demand.note(8.0, 1.0, 200.0)
    shares = [share for _, share in demand.at(200.0, 1)]
    assert len(shares) == 2 and sum(shares) == pytest.approx(MOST_DEMAND)


def test_prompts_that_left_before_they_were_computed_do_not_count() -> None:
    demand = demand_of(1.0, 0.4)
    for number in range(100):
        demand.note(1.0, 1.0, 200.0 + number / 100)
    for number in range(100):
        demand.take_back(1.0, 1.0, 200.0 + number / 100, 205.0)
    ((_, share),) = demand.at(205.0, 1)
    assert share == pytest.approx(0.4 * exp(-5.0 / WINDOW_S), rel=0.05)


def test_more_workers_have_more_time() -> None:
    ((_, share),) = demand_of(1.0, 0.8).at(200.0, 2)
    assert share == pytest.approx(0.4, rel=0.05)


def test_tiny_prompts_count_for_little_in_the_usual_one() -> None:
    demand = PromptDemand()
    assert demand.usual_s(0.0) == 0.0
    for _ in range(10):
        demand.note(1.0, 0.5, 0.0)
    for _ in range(1000):
        demand.note(1.0, 1e-4, 0.0)
    assert demand.usual_s(0.0) == pytest.approx(0.5, rel=0.05)


def test_urgent_prompts_overtake_a_long_one_until_they_would_be_due_after_it() -> None:
    demand = demand_of(1.0, 0.4).at(200.0, 1)
    assert overtaking_s(demand, done_s=2.0, left_s=30.0) == pytest.approx(0.4 * 2.8, rel=0.05)
    assert overtaking_s(demand, done_s=10.0, left_s=4.0) < 0.4 * 3.5
    assert overtaking_s(demand, done_s=0.2, left_s=0.4) == 0.0


@given(st.floats(0.01, 200.0), st.floats(0.0, 2.0), st.floats(0.0, 100.0), st.floats(-10.0, 100.0))
def test_later_prompts_take_no_more_than_their_share(ttft_s: float, share: float, done_s: float, left_s: float) -> None:
    seconds = overtaking_s([(ttft_s, share)], done_s, left_s)
    assert 0.0 <= seconds <= share * max(0.0, left_s - ttft_s) + 1e-9
    assert seconds <= share * (done_s + share * done_s) + 1e-9

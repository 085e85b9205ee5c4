from collections.abc import Sequence
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from cluster.messages.ids import SloClass
from router.load.decode_slack import NOTHING, DecodeSlack, LookAhead
from router.prediction.step_chunk import StepBound

STEP_S = 0.02
UNDISTURBED = (0.0, 0.0, 0.0)
Running = tuple[float, float, float, float, int]
seconds = st.floats(0.0, 100.0)
running_requests = st.tuples(
    st.floats(0.01, 50.0), seconds, st.floats(1.0, 2000.0), st.floats(1.0, 1e5), st.integers(0, 2)
)


def a_running_request(slack_s: float, num_left: float = 100.0, rank: int = 1) -> Running:
    """With a budget of 10 s."""
    return (10.0, 10.0 - num_left * STEP_S - slack_s, num_left, 1000.0, rank)


def slack_of(several: Sequence[Running], tpot_s: float = inf, crowded_step_s: float = STEP_S) -> DecodeSlack:
    """`tpot_s`: the objective by which the engine bounds its steps."""
    look_ahead = LookAhead(STEP_S, UNDISTURBED, 0.1, crowded_step_s, tpot_s, StepBound(0.0))
    for running in several:
        look_ahead.add(*running)
    return look_ahead.slack()


def victims(
    *several: Running, stall_s: float = 0.0, slowdown_s: float = 0.0, of: SloClass = SloClass.STANDARD
) -> float:
    return slack_of(several).victims(stall_s, slowdown_s, of.rank)


def test_running_request_with_less_slack_than_the_stall_is_a_victim() -> None:
    assert victims(a_running_request(6.0), stall_s=20.0) > 0.95
    assert victims(a_running_request(60.0), stall_s=20.0) < 0.05


def test_engine_that_bounds_its_steps_spreads_a_stall_over_the_tokens_to_come() -> None:
    bounded = slack_of([a_running_request(6.0, num_left=100.0)], 0.04)
    assert bounded.victims(20.0, 0.0, SloClass.STANDARD.rank) < 0.05
    loose = slack_of([a_running_request(6.0, num_left=100.0)], 0.2)
    assert loose.victims(20.0, 0.0, SloClass.STANDARD.rank) > 0.95


def test_request_whose_objective_the_longest_steps_keep_is_no_victim_of_a_prompt_or_of_slower_steps() -> None:
    """500 tokens are to come, 3 s have passed of the budget of 23 s: 40 ms a token are left."""
    running = (23.0, 3.0, 500.0, 1000.0, 1)
    kept = slack_of([running], 0.04)
    assert kept.victims(20.0, 0.0, 1) < 0.05
    assert kept.victims(20.0, 0.01, 1) < 0.05
    assert kept.victims(20.0, 0.02, 1) > 0.95
    assert slack_of([running], 0.05).victims(20.0, 0.0, 1) > 0.8


def test_requests_that_are_to_join_lengthen_the_longest_steps() -> None:
    running = (23.0, 3.0, 500.0, 1000.0, 1)
    assert slack_of([running], 0.04, crowded_step_s=0.034).victims(20.0, 0.0, 1) < 0.05
    assert slack_of([running], 0.04, crowded_step_s=0.034).victims(20.0, 0.01, 1) > 0.8
    assert slack_of([running], 0.04).victims(20.0, 0.01, 1) < 0.05


def test_running_request_that_is_lost_already_is_no_victim() -> None:
    assert victims(a_running_request(-30.0), stall_s=20.0) < 0.05


def test_slower_steps_hurt_who_has_many_tokens_to_come() -> None:
    assert victims(a_running_request(6.0, num_left=400.0), slowdown_s=0.05) > 0.9
    assert victims(a_running_request(6.0, num_left=4.0), slowdown_s=0.05) < 0.1


def test_victim_of_a_higher_class_counts_more_than_one_and_of_a_lower_class_hardly() -> None:
    batch = victims(a_running_request(6.0, rank=SloClass.INTERACTIVE.rank), stall_s=20.0, of=SloClass.BATCH)
    assert batch > 3.5
    own = victims(a_running_request(6.0, rank=SloClass.BATCH.rank), stall_s=20.0, of=SloClass.BATCH)
    assert 0.9 < own < 1.1
    lower = victims(a_running_request(6.0, rank=SloClass.BATCH.rank), stall_s=20.0, of=SloClass.INTERACTIVE)
    assert 0.0 < lower < 0.1


@given(st.lists(running_requests, max_size=50), seconds, seconds)
def test_longer_stall_has_more_victims(
    several: list[tuple[float, float, float, float, int]], stall_s: float, more_s: float
) -> None:
    slack = slack_of(several)
    fewer = slack.victims(stall_s, 0.0, 1)
    assert -0.01 * len(several) <= fewer <= slack.victims(stall_s + more_s, 0.0, 1) + 1e-3 * len(several)


@given(running_requests, st.floats(0.1, 50.0), st.floats(0.0, 20.0))
def test_more_slack_never_makes_a_victim(
    running: tuple[float, float, float, float, int], more_s: float, stall_s: float
) -> None:
    budget_s, elapsed_s, num_left, per_token, rank = running
    with_more = (budget_s, elapsed_s - more_s, num_left, per_token, rank)
    missed = [slack_of([r]).bins[0].miss for r in (running, with_more)]
    risks = [
        m + victims(r, stall_s=stall_s, of=SloClass.INTERACTIVE)
        for m, r in zip(missed, (running, with_more), strict=True)
    ]
    assert risks[1] <= risks[0] + 1e-3


@given(st.lists(running_requests, max_size=50), seconds)
def test_those_that_have_ended_have_freed_their_memory(
    several: list[tuple[float, float, float, float, int]], after_s: float
) -> None:
    number, freed = slack_of(several).finished_by(after_s)
    ended = [r for r in several if r[2] * STEP_S <= after_s]
    assert number == len(ended)
    assert abs(freed - sum(context + left for _, _, left, context, _ in ended)) <= 1e-6 * (1 + freed)


def test_worker_that_decodes_nothing_has_no_victims() -> None:
    assert slack_of([]) is NOTHING
    assert NOTHING.victims(1e9, 1e9, 0) == 0.0

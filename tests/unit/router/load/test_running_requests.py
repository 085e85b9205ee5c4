"""The decode clock of a worker, and the KV tokens and the decode slack that follow from it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.messages.ids import Path, RequestId, WorkerId
from cluster.messages.placement import Placement, Slo
from router.load.charge import Charge, Work
from router.load.decode_slack import NOTHING
from router.load.prefill_share import PrefillShare
from router.load.running_requests import SLACK_AGE_S, SLACK_SHARE, RunningRequests
from router.prediction.learned_latency import LatencyModels
from router.prediction.output_lengths import LengthHistogram
from router.prediction.path_bias import PathBias
from router.prediction.worker_model import WorkerModel
from tests.unit.clusters import KIND
from tests.unit.factories import a_placement_request

PLACEMENT = Placement(path=Path.DECODE, prefill=None, decode=WorkerId("d0"), why="", slo=Slo(1.0, 0.05))


def a_charge(request_id: str, num_prompt: int = 1000) -> Charge:
    request = a_placement_request(request_id, num_prompt_tokens=num_prompt)
    return Charge(request, PLACEMENT, LengthHistogram(), Work(0.1, 0.1, 0.1), num_prompt, 1.0, None, 0.0)


def nothing_runs(stall_share: PrefillShare | None = None) -> RunningRequests:
    return RunningRequests(WorkerModel(LatencyModels().model(KIND)), stall_share or PrefillShare(), PathBias(), 0.0)


def join(running: RunningRequests, charge: Charge, now: float) -> None:
    running.join(charge, now)
    running.update_step()


def test_running_request_gets_a_token_in_each_step() -> None:
    running = nothing_runs()
    join(running, a_charge("r"), 0.0)
    step_s = running.step_s(0.0)
    assert running.context_tokens(100 * step_s) == pytest.approx(1100)


def test_prompts_on_the_same_worker_slow_the_clock() -> None:
    share = PrefillShare()
    running = nothing_runs(share)
    join(running, a_charge("r"), 0.0)
    step_s = running.step_s(0.0)
    share.note(1.0, 0.0)
    assert 1000 < running.context_tokens(20 * step_s) < 1020


def test_clock_stands_while_nothing_runs() -> None:
    running = nothing_runs()
    join(running, a_charge("first"), 50.0)
    assert running.context_tokens(50.0) == 1000


def test_requests_of_a_report_count_as_running() -> None:
    running = nothing_runs()
    running.set_unknown(3, 5000.0, 1.0)
    assert (running.num, running.context_tokens(1.0)) == (3, 5000.0)


def test_request_that_leaves_takes_its_tokens_along() -> None:
    running = nothing_runs()
    one, other = a_charge("one", 500), a_charge("other")
    join(running, one, 0.0)
    join(running, other, 1.0)
    assert running.leave(other, 2.0)
    assert not running.leave(other, 2.0)
    assert running.leave(one, 3.0)
    assert running.context_tokens(3.0) == 0.0


def test_slack_is_computed_again_after_a_moment() -> None:
    running = nothing_runs()
    assert running.slack(0.0) is NOTHING
    join(running, a_charge("r"), 0.0)
    first = running.slack(1.0)
    assert running.slack(1.0 + SLACK_AGE_S / 2) is first
    assert running.slack(1.0 + 2 * SLACK_AGE_S) is not first


def test_slack_of_many_requests_is_used_again_as_long_as_their_budgets_bear_it() -> None:
    running = nothing_runs()
    for number in range(40):
        join(running, a_charge(f"r{number}"), 0.0)
    first = running.slack(20.0)
    bears_s = SLACK_SHARE * first.mean_budget_s
    assert bears_s > 4 * SLACK_AGE_S
    assert running.slack(20.0 + bears_s / 2) is first
    for number in (0, 1):
        running.leave(running.charges[RequestId(f"r{number}")], 20.0 + bears_s / 2)
    assert running.slack(20.0 + bears_s / 2) is first, "hardly any request has left"
    join(running, a_charge("new"), 20.0 + bears_s / 2)
    second = running.slack(20.0 + bears_s / 2)
    assert second is not first
    assert running.slack(20.0 + 3 * bears_s) is not second


STEPS = st.lists(st.tuples(st.integers(0, 5), st.floats(0.0, 10.0), st.floats(0.0, 1.0)), max_size=40)


@given(STEPS)
def test_any_history_leaves_a_valid_machine(steps: list[tuple[int, float, float]]) -> None:
    """Each request joins, leaves, joins again, and so on, while prompts stall the worker."""
    share = PrefillShare()
    running, now = nothing_runs(share), 0.0
    charges: dict[int, Charge] = {}
    for number, wait_s, stall_s in steps:
        now += wait_s
        share.note(stall_s, now)
        if charge := charges.pop(number, None):
            assert running.leave(charge, now)
        else:
            charges[number] = a_charge(f"r{number}", 100 * (number + 1))
            running.join(charges[number], now)
        running.update_step()
        running.validate()
        assert running.charges.keys() == {f"r{number}" for number in charges}
        assert running.context_tokens(now) >= sum(c.num_prompt for c in charges.values()) - 1e-3
        assert len(running.slack(now).finish_s) <= 6

"""What prefill workers take: prompts to hand over, and whole requests."""

import msgspec
import pytest

from cluster.messages.ids import Path, RequestId
from cluster.messages.placement import Placement
from cluster.messages.reports import StepSample
from cluster.messages.scheduler_events import FirstToken
from router.placement import goodput
from router.state import RouterState
from tests.expected import present
from tests.unit.clusters import FAST, SLO, a_cluster, a_report, ask, decoding, ended, put, report_all

PAIR = Path.PREFILL_DECODE


def crowded(num_running_before: int, *, is_plain: bool = False) -> RouterState:
    """One decode worker, which decodes so many requests, beside three prefill workers that have nothing to do."""
    state = a_cluster(3, 1, is_plain=is_plain)
    for number in range(num_running_before):
        decoding(state, f"running{number}", 8000, "d0", 1.0 + number / 20)
    for now in (5.0, 9.0):
        report_all(state, now, is_plain=is_plain)
    return state


def test_prefill_worker_takes_a_request_whole_where_those_that_decode_are_too_few() -> None:
    placed = put(crowded(30), ask("r", 2000, tpot_s=0.03), 9.1)
    assert (placed.path, placed.decode) == (Path.PREFILL, None)
    handed_over = next(option for option in placed.considered if option.path is PAIR)
    assert present(placed.predicted).risk + 0.3 < handed_over.risk


def test_prefill_worker_with_long_steps_does_not_take_what_is_hopeless_there_too() -> None:
    placed = crowded(30, is_plain=True).place(ask("r", 2000, tpot_s=0.017), 9.1)
    assert not isinstance(placed, Placement) or placed.path is not Path.PREFILL


OVERHEAD = "unknown|cpu"
"""An engine without figures (NEUTRAL in router/prediction/learned_latency.py), of whose step 10 ms are the same however
little it computes. Beside a decode with an objective of 20 ms, prompts have half of the time.
"""


@pytest.fixture
def _keeps_to_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefill workers of OVERHEAD keep to prompts at an objective of 20 ms: they compute prompts 1.75 times as fast."""
    monkeypatch.setattr(goodput, "MOST_SLOWDOWN", 1.5)


def with_overhead(num_running: int) -> RouterState:
    """Two prefill workers that have nothing to do, beside a decode worker that decodes so many requests."""
    state = RouterState(SLO)
    report_overhead(state, 0.5)
    for number in range(num_running):
        decoding(state, f"running{number}", 2000, "d0", 1.0, tpot_s=0.02)
    report_overhead(state, 2.0)
    return state


def report_overhead(state: RouterState, now: float) -> None:
    for report in (a_report("p0"), a_report("p1"), a_report("d0", {"p0": FAST, "p1": FAST})):
        state.handle(msgspec.structs.replace(report, shape=msgspec.structs.replace(report.shape, kind=OVERHEAD)), now)


@pytest.mark.usefixtures("_keeps_to_prompts")
def test_prefill_workers_keep_to_prompts_where_a_decode_leaves_no_room_for_prompts_in_a_step() -> None:
    state = with_overhead(3)
    for number in range(5):
        assert put(state, ask(f"r{number}", 2000, tpot_s=0.02), 2.0 + number / 10).path is PAIR
        state.handle(FirstToken(request_id=RequestId(f"r{number}")), 2.05 + number / 10)


def test_prefill_worker_takes_whole_requests_where_its_steps_have_room_for_prompts() -> None:
    assert put(with_overhead(3), ask("r", 2000, tpot_s=0.05), 2.0).path is Path.PREFILL


@pytest.mark.usefixtures("_keeps_to_prompts")
def test_decoding_on_a_prefill_worker_costs_what_prompts_of_others_want_of_it() -> None:
    quiet, busy = with_overhead(12), with_overhead(12)
    for number in range(10):
        name, now = f"prompt{number}", 2.0 + number / 10
        put(busy, ask(name, 4000, max_output_tokens=1), now)
        ended(busy, name, now)
    quiet_costs, busy_costs = (
        {option.path: option.cost for option in put(state, ask("r", 2000, tpot_s=0.02), 3.0).considered}
        for state in (quiet, busy)
    )
    assert quiet_costs[Path.PREFILL] < quiet_costs[PAIR]
    assert busy_costs[Path.PREFILL] > busy_costs[PAIR]
    assert busy_costs[Path.PREFILL] > 2 * quiet_costs[Path.PREFILL]
    assert busy_costs[PAIR] < 1.2 * quiet_costs[PAIR]


def test_prompts_keep_away_from_a_prefill_worker_that_decodes() -> None:
    state = crowded(30)
    whole = put(state, ask("whole", 2000, tpot_s=0.022), 9.1)
    state.handle(FirstToken(request_id=RequestId("whole")), 9.2)
    for number in range(6):
        placed = put(state, ask(f"r{number}", 30_000, path=PAIR), 9.3)
        assert placed.prefill != whole.prefill
        ended(state, f"r{number}", 9.3)


def test_prefill_worker_is_not_taken_to_decode_faster_than_decode_workers_do() -> None:
    state, report = a_cluster(1, 0), a_report("d0", {"p0": FAST})
    shape = msgspec.structs.replace(report.shape, kind="slow")
    steps = [StepSample(0, 0, 1, 1000, 0.1)] * 20
    state.handle(msgspec.structs.replace(report, shape=shape, steps=steps), 0.5)
    assert present(put(state, ask("r", 2000, path=Path.PREFILL), 1.0).predicted).tpot_s > 0.08


def test_one_token_answer_ends_where_it_is_prefilled() -> None:
    state = a_cluster(2, 2)
    for number in range(30):
        decoding(state, f"running{number}", 2000, f"d{number % 2}", 1.0)
    for now in (5.0, 9.0):
        report_all(state, now)
    assert put(state, ask("r", 8000, max_output_tokens=1), 9.1).path is Path.PREFILL


def test_prefill_worker_that_decodes_hands_over_only_where_no_other_path_is_left() -> None:
    state = a_cluster(1, 1)
    put(state, ask("whole", 2000, path=Path.PREFILL), 1.0)
    state.handle(FirstToken(request_id=RequestId("whole")), 1.2)
    assert put(state, ask("chosen", 30_000), 1.5).path is not PAIR
    assert put(state, ask("forced", 2000, path=PAIR), 1.6).path is PAIR

"""What the placement policy does with requests and clusters whose right treatment is known."""

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.messages.ids import Path, RequestId, SloClass, WorkerId
from cluster.messages.placement import Placement, Prediction
from cluster.messages.reports import StepSample
from cluster.messages.scheduler_events import FirstToken, WorkerLost
from cluster.messages.transport import LinkSpeed
from tests.expected import present
from tests.unit.clusters import FAST, KIND, a_cluster, a_report, ask, decoding, ended, prefilled, put, report_all

PAIR, ALONE = Path.PREFILL_DECODE, Path.DECODE


def test_short_prompt_stays_on_an_idle_decode_worker() -> None:
    assert put(a_cluster(4, 4), ask("r", 200), 1.0).path is ALONE


def test_long_prompt_keeps_away_from_a_worker_that_decodes_and_must_keep_its_steps_short() -> None:
    state = a_cluster(1, 1)
    for number in range(30):
        decoding(state, f"running{number}", 2000, "d0", 1.0)
    for now in (5.0, 9.0):
        report_all(state, now)
    placed = put(state, ask("r", 32_000), 9.1)
    assert placed.prefill == "p0"
    stayed = next(option for option in placed.considered if option.path is ALONE)
    assert stayed.ttft_s > 1.2 * present(placed.predicted).ttft_s


def test_prompt_goes_to_a_more_crowded_worker_where_it_delays_no_prompt_that_it_would_overtake() -> None:
    state = a_cluster(0, 2)
    for number in range(4):
        decoding(state, f"running{number}", 9000, "d1", 1.0)
    report_all(state, 2.0)
    assert put(state, ask("long", 20_000, ttft_s=1.7, excluded=frozenset({WorkerId("d1")})), 2.0).decode == "d0"
    assert put(state, ask("short", 4000, ttft_s=1.0), 2.1).decode == "d1"


def test_request_whose_decode_worker_is_out_of_memory_waits_or_goes_to_another() -> None:
    state = a_cluster(1, 2)
    for number in range(3):
        decoding(state, f"big{number}", 100_000, "d0", 1.0)
    assert put(state, ask("r", 20_000, tpot_s=None), 2.0).decode == "d1"


def test_link_that_carries_nothing_is_not_used() -> None:
    state = a_cluster(2, 2, link=LinkSpeed(0.001, 1e5))
    assert put(state, ask("r", 20_000), 1.0).path is ALONE


def test_backlog_of_a_slow_link_is_counted() -> None:
    state = a_cluster(4, 1, link=LinkSpeed(0.001, 1e9))
    gaps = []
    for number in range(4):
        placed = put(state, ask(f"r{number}", 4000, path=Path.PREFILL_DECODE), 1.0)
        assert placed.predicted is not None
        gaps.append(placed.predicted.tpot_s)
    assert gaps == sorted(gaps)
    assert gaps[-1] > 2 * gaps[0]


def test_cluster_without_decode_workers_prefills_and_decodes_on_prefill_workers() -> None:
    assert put(a_cluster(2, 0), ask("r", 500), 1.0).path is Path.PREFILL


def test_cluster_without_prefill_workers_stays_on_decode_workers() -> None:
    assert put(a_cluster(0, 2), ask("r", 20_000), 1.0).path is ALONE


def test_arrivals_between_two_reports_are_spread_by_our_own_accounting() -> None:
    state = a_cluster(4, 4)
    used: Counter[WorkerId | None] = Counter()
    for number in range(100):
        placed = put(state, ask(f"r{number}", 3000, path=Path.PREFILL_DECODE), 1.0 + number / 100)
        used[placed.prefill] += 1
    assert max(used.values()) <= 2 * 100 / 4


def test_queued_prompts_free_their_worker_when_they_are_done() -> None:
    state = a_cluster(1, 1)
    first = put(state, ask("one", 16_000, path=Path.PREFILL_DECODE), 1.0)
    second = put(state, ask("two", 16_000, path=Path.PREFILL_DECODE), 1.0)
    prefilled(state, "one", 1.3)
    prefilled(state, "two", 1.4)
    third = put(state, ask("three", 16_000, path=Path.PREFILL_DECODE), 1.5)
    ttfts = [placed.predicted.ttft_s for placed in (first, second, third) if placed.predicted]
    assert ttfts[1] == pytest.approx(2 * ttfts[0], rel=0.01)
    assert ttfts[2] == pytest.approx(ttfts[0], rel=0.01)


def test_chosen_option_is_the_cheapest_of_those_that_a_receipt_shows() -> None:
    state = a_cluster(2, 2)
    hashes = [block.to_bytes(8, "big") for block in range(200)]
    for number in range(40):
        now = 1.0 + number / 20
        placed = put(state, ask(f"r{number}", 200 + 80 * number, block_hashes=hashes[: 5 * number]), now)
        assert present(placed.predicted).cost == min(option.cost for option in placed.considered)
        state.handle(FirstToken(request_id=RequestId(f"r{number}")), now + 0.02)
        report_all(state, now + 0.02)


SHORT = {"max_output_tokens": 4, "path": Path.PREFILL_DECODE}


def test_first_token_waits_for_decoding_where_the_gap_after_it_would_cost_the_tpot_objective() -> None:
    state = a_cluster(1, 1, link=LinkSpeed(0.3, 49.5e9))
    short = put(state, ask("short", 2000, **SHORT), 1.0)
    assert short.predicted is not None and short.predicted.holds_first
    assert short.slo is not None
    assert short.predicted.ttft_s < short.holds_first_until_s < short.slo.ttft_s
    assert short.predicted.ttft_s > 0.3 > 0.05 > short.predicted.tpot_s
    long = put(a_cluster(1, 1), ask("long", 2000, path=Path.PREFILL_DECODE, max_output_tokens=400), 1.0)
    assert long.holds_first_until_s == 0.0
    assert long.predicted is not None and not long.predicted.holds_first


def test_first_token_does_not_wait_where_that_would_cost_the_ttft_objective() -> None:
    state = a_cluster(1, 1, link=LinkSpeed(3.0, 49.5e9))
    assert put(state, ask("r", 2000, **SHORT), 1.0).holds_first_until_s == 0.0


def test_idle_worker_is_taken_before_those_that_decode_whatever_it_did_before() -> None:
    state = a_cluster(0, 6)
    decoding(state, "long", 100_000, "d5", 1.0)
    ended(state, "long", 2.0, num_output_tokens=20)
    for number in range(5):
        decoding(state, f"short{number}", 100, f"d{number}", 3.0)
    report_all(state, 3.4)
    assert put(state, ask("r", 200), 3.5).decode == "d5"


def test_decision_explains_itself() -> None:
    placed = put(a_cluster(2, 2), ask("r", 4000), 1.0)
    assert placed.predicted == placed.considered[0]
    assert {option.path for option in placed.considered} == {PAIR, ALONE}
    assert placed.predicted.cost == min(option.cost for option in placed.considered)
    assert placed.slo is not None
    assert placed.slo.tpot_s == 0.05


def test_when_most_workers_have_gone_silent_their_own_load_decides() -> None:
    state = a_cluster(0, 4)
    for number in range(6):
        put(state, ask(f"r{number}", 2000, path=Path.DECODE), 0.1)
    placed = put(state, ask("r", 2000), 4.0)
    assert placed.predicted is None
    assert "LMetric" in placed.why


def test_slow_worker_is_chosen_last_and_its_times_are_known() -> None:
    state = a_cluster(0, 3)
    usual_s = state.models.model(KIND).times.step_s(500, 5e5, 60, 240_000)
    for number in range(40):
        for worker, pace in (("d0", 2.0), ("d1", 1.0), ("d2", 1.0)):
            steps = [StepSample(500, 500_000, 60, 240_000, pace * usual_s)] * 4
            state.handle(msgspec.structs.replace(a_report(worker), steps=steps), 1.0 + number / 4)
    on_slow = put(state, ask("slow", 8000, path=ALONE, excluded=frozenset({WorkerId("d1"), WorkerId("d2")})), 11.0)
    others = [put(state, ask(f"r{number}", 8000), 11.0) for number in range(2)]
    assert {placed.generating for placed in others} == {"d1", "d2"}
    assert present(on_slow.predicted).ttft_s > 1.6 * present(others[0].predicted).ttft_s


@pytest.mark.parametrize("is_steady", [True, False])
def test_tpot_that_the_engine_keeps_is_at_risk_where_its_steps_are_uneven(is_steady: bool) -> None:
    state = a_cluster(0, 1)
    for number in range(40):
        decoding(state, f"running{number}", 4000, "d0", 1.0, tpot_s=0.05)
    model = state.models.model(KIND)
    usual_s = model.times.step_s(500, 5e5, 40, 160_000)
    for number in range(40):
        seconds = usual_s * (1.0 if is_steady else 0.5 + number % 2)
        model.observe(StepSample(500, 500_000, 40, 160_000, seconds))
    for number in range(3):
        put(state, ask(f"prompt{number}", 10_000, ttft_s=60.0, tpot_s=10.0, path=ALONE), 2.0)
    risk = present(put(state, ask("r", 100, tpot_s=0.05, path=ALONE), 2.1).predicted).risk
    assert (risk < 0.1) == is_steady


@settings(max_examples=30)
@given(
    num_prompt=st.integers(1, 200_000),
    more=st.integers(0, 50_000),
    queued=st.lists(st.integers(1, 50_000), max_size=3),
    num_running_before=st.integers(0, 10),
)
def test_more_work_is_never_predicted_to_be_done_sooner(
    num_prompt: int, more: int, queued: list[int], num_running_before: int
) -> None:
    def predict(num_prompt: int, queued: list[int]) -> Prediction:
        state = a_cluster(1, 1)
        for number in range(num_running_before):
            decoding(state, f"running{number}", 1000, "d0", 0.5)
        for number, size in enumerate(queued):
            put(state, ask(f"queued{number}", size, path=Path.DECODE), 1.0)
        placed = put(state, ask("r", num_prompt, path=Path.DECODE), 1.0)
        assert placed.predicted is not None
        return placed.predicted

    base = predict(num_prompt, queued)
    least_s = (1 - 1e-3) * base.ttft_s  # steps have whole tokens, so a longer prompt may fill its steps better
    assert predict(num_prompt + more, queued).ttft_s >= least_s
    assert predict(num_prompt, [*queued, 1000]).ttft_s >= least_s
    assert 0 <= base.risk <= 1
    assert base.cost < float("inf")


@pytest.mark.parametrize("usage", [0.0, 1.0, 7.0, float("nan")])
@pytest.mark.parametrize("num_running", [0, 10_000])
def test_reports_that_cannot_be_true_do_not_stop_placement(usage: float, num_running: int) -> None:
    state = a_cluster(2, 2)
    state.handle(a_report("d0", {"p0": None}, kv_cache_usage=usage, num_running=num_running), 1.0)
    answer = state.place(ask("r", 2000), 1.1)
    assert isinstance(answer, Placement)
    assert answer.predicted is not None
    assert answer.predicted.cost < float("inf")


def test_long_prompt_is_let_in_by_an_idle_service_however_many_requests_came_before() -> None:
    state = a_cluster(3, 3)
    for number in range(50):
        put(state, ask(f"short{number}", 50), 1.0 + number / 100)
        ended(state, f"short{number}", 1.0 + number / 100, num_output_tokens=2)
    put(state, ask("long", 60_000), 1.6)


LOADS = st.fixed_dictionaries(
    {
        "num_running": st.integers(-10, 10**9),
        "num_waiting": st.integers(-10, 10**9),
        "kv_cache_usage": st.floats(),
    }
)


@given(loads=st.lists(LOADS, min_size=4, max_size=4), num_prompt=st.integers(0, 10**7))
def test_whatever_reports_say_there_is_an_answer(loads: list[dict[str, Any]], num_prompt: int) -> None:
    state = a_cluster(2, 2)
    for worker, load in zip(("p0", "p1", "d0", "d1"), loads, strict=True):
        state.handle(a_report(worker, {"p0": None, "p1": FAST} if worker[0] == "d" else None, **load), 0.5)
    answer = state.place(ask("r", num_prompt), 1.0)
    state.validate()
    if isinstance(answer, Placement) and answer.predicted is not None:
        assert answer.predicted.cost < float("inf")
        assert answer.predicted.ttft_s >= 0.0
    state.decide(100.0)


@pytest.mark.parametrize("field", ["kv_capacity_tokens", "block_size", "max_step_tokens"])
@pytest.mark.parametrize("value", [0, 1, 10**12])
def test_absurd_shapes_do_not_stop_placement(field: str, value: int) -> None:
    state = a_cluster(0, 0)
    for worker in ("p0", "d0"):
        report = a_report(worker, {"p0": FAST} if worker == "d0" else None)
        shape = msgspec.structs.replace(report.shape, kind="unheard of", **{field: value})
        state.handle(msgspec.structs.replace(report, shape=shape), 0.0)
    for number in range(3):
        hashes = [block.to_bytes(8, "big") for block in range(100)]
        state.place(ask(f"r{number}", 2000, block_hashes=hashes), 1.0 + number)
        state.validate()


def test_fresh_scheduler_sees_the_load_that_it_has_not_placed() -> None:
    state = a_cluster(2, 2)
    for worker, links in (("d0", dict.fromkeys(("p0", "p1"), FAST)), ("p0", None)):
        state.handle(a_report(worker, links, num_running=60, kv_cache_usage=0.7), 0.5)
    used: Counter[str] = Counter()
    for number in range(6):
        used[put(state, ask(f"r{number}", 1000), 1.0 + number / 10).generating] += 1
        state.handle(FirstToken(request_id=RequestId(f"r{number}")), 1.08 + number / 10)
    assert used["d1"] > used["d0"]


def test_unknown_load_ends_when_the_reports_no_longer_say_it() -> None:
    state = a_cluster(0, 1)
    state.handle(a_report("d0", num_running=2000), 0.5)
    assert not isinstance(state.place(ask("r", 1000), 0.6), Placement)
    state.handle(a_report("d0"), 1.5)
    put(state, ask("r", 1000), 1.6)


def test_worker_that_flaps_keeps_its_charges_and_its_turn() -> None:
    state = a_cluster(1, 2)
    for number in range(40):
        now = 1.0 + number / 10
        put(state, ask(f"r{number}", 2000), now)
        if number % 2:
            state.handle(WorkerLost(worker=WorkerId("d0")), now)
            state.validate()
        else:
            state.handle(a_report("d0", {"p0": FAST}), now)
        state.handle(FirstToken(request_id=RequestId(f"r{number}")), now)
    for number in range(40):
        ended(state, f"r{number}", 6.0)
    report_all(state, 6.0)
    assert all(worker.num_placed == 0 for worker in state.view(6.0).workers)


def test_several_sequences_of_a_request_teach_the_length_of_one() -> None:
    state = a_cluster(0, 1)
    for number in range(25):
        put(state, ask(f"r{number}", 100, num_sequences=8, can_hand_over=False), 1.0)
        ended(state, f"r{number}", 2.0, num_output_tokens=800)
    assert state._placer._lengths.of(("", SloClass.STANDARD)).quantile(0.5) == pytest.approx(100, rel=0.25)


def test_running_request_that_may_generate_little_is_expected_to_end_soon() -> None:
    state = a_cluster(1, 1)
    decoding(state, "short", 2000, "d0", 1.0, max_output_tokens=4)
    slack = state.workers.by_id[WorkerId("d0")].running.slack(1.1)
    assert slack.finish_s[0] < 0.2


@pytest.mark.parametrize("path", [Path.PREFILL, PAIR])
def test_fewer_requests_find_a_longer_queue_of_prompts_where_there_are_more_workers(path: Path) -> None:
    """Of either pool, since every worker can compute prompts."""

    def future_victims(num_decode: int) -> float:
        state = a_cluster(2, num_decode)
        for number in range(6):
            put(state, ask(f"before{number}", 6000, max_output_tokens=2, path=path), 1.0)
        return present(put(state, ask("r", 6000, max_output_tokens=2, path=path), 1.0).predicted).future_victims

    assert future_victims(2) > future_victims(8) > 0

"""Who is let in, who waits and in what order, and what the refused are told."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.messages.ids import IngressId, Path, RequestId, SloClass
from cluster.messages.placement import Placement, Prediction, Rejection, Slo
from cluster.messages.scheduler_events import FirstToken, RequestClosed
from router.admission.admission_control import Decision
from router.admission.retry_after import LEAST_RETRY_S, MOST_RETRY_S, retry_after_s
from router.admission.verdict import HIGH_CLASS_HARM, REPLACED_HARM, Verdict, gain, judge
from router.admission.waiting_queue import MAX_QUEUE, Waiting, WaitingQueue
from router.load.worker_state import WorkerState
from router.placement.candidates import Choice
from router.placement.placement_input import Others, PlacementInput
from router.prediction.learned_latency import LatencyModels
from router.prediction.output_lengths import LengthHistogram
from router.prediction.path_bias import PathBias
from router.prediction.worker_model import WorkerModel
from router.state import RouterState
from tests.expected import present
from tests.unit.clusters import KIND, a_cluster, a_report, ask, ended, put

INTERACTIVE, STANDARD, BATCH = SloClass.INTERACTIVE, SloClass.STANDARD, SloClass.BATCH


def a_busy_cluster(seconds: float = 20.0) -> RouterState:
    """One worker of each pool, with prompts queued for so long, which no later prompt overtakes."""
    state, number = a_cluster(1, 1, is_plain=True), 0
    while min(w.prompts.seconds(0.0) for w in state.workers.by_id.values()) < seconds:
        for path in (Path.PREFILL_DECODE, Path.DECODE):
            put(state, ask(f"queued{number} {path}", 32_000, path=path), 0.0)
        number += 1
    return state


def waiting(state: RouterState, request_id: str, num_prompt: int, now: float, **fields: object) -> None:
    assert state.place(ask(request_id, num_prompt, **fields), now) is None
    state.validate()


def a_waiting(request_id: str, slo_class: SloClass, since: float, gives_up_at: float) -> Waiting:
    made = Waiting(ask(request_id, 100, slo_class=slo_class), None, since)
    made.gives_up_at = gives_up_at
    return made


def order(*several: Waiting) -> list[str]:
    queue = WaitingQueue()
    for one in several:
        queue.add(one)
    return [one.request.request_id for one in queue.first(len(several))]


@pytest.mark.parametrize("age_s", [0.0, 5.0, 500.0])
@pytest.mark.parametrize("slo_class", list(SloClass))
def test_idle_service_lets_everybody_in_however_late(slo_class: Any, age_s: float) -> None:
    put(a_cluster(1, 1), ask("late", 2000, slo_class=slo_class, age_s=age_s), 1.0)


@pytest.mark.parametrize("tpot_s", [1e-6, 1e-3])
def test_idle_service_lets_in_who_wants_more_than_it_can_give(tpot_s: float) -> None:
    put(a_cluster(1, 1), ask("greedy", 2000, tpot_s=tpot_s, ttft_s=1e-3), 1.0)


def test_request_that_would_miss_its_slo_at_the_cost_of_others_waits() -> None:
    waiting(a_busy_cluster(), "r", 2000, 0.1)


def test_request_that_cannot_make_it_any_more_is_refused_as_overload() -> None:
    answer = a_busy_cluster().place(ask("r", 2000, age_s=10.0), 0.1)
    assert isinstance(answer, Rejection)
    assert answer.is_overload and answer.why == "its SLO cannot be met"
    assert answer.considered[0].risk > 0.5
    assert LEAST_RETRY_S <= answer.retry_after_s <= MOST_RETRY_S


@pytest.mark.parametrize("impossible", [{"ttft_s": 1e-6}, {"tpot_s": 1e-6, "age_s": 10.0}])
def test_requests_that_can_never_be_served_in_time_keep_nobody_away(impossible: dict[str, float]) -> None:
    def told(state: RouterState) -> float:
        answer = state.place(ask("honest", 2000, age_s=10.0), 0.1)
        assert isinstance(answer, Rejection)
        return answer.retry_after_s

    state = a_busy_cluster(5.0)
    for number in range(200):
        assert isinstance(state.place(ask(f"impossible{number}", 16, **impossible), 0.1), Rejection)
    assert told(state) <= 1.5 * told(a_busy_cluster(5.0))


def test_request_that_was_let_in_before_is_not_refused_for_being_late() -> None:
    state = a_busy_cluster()
    put(state, ask("resumed", 2000, num_output_tokens=5, age_s=10.0), 0.1)
    put(state, ask("forced", 2000, path=Path.DECODE, age_s=10.0), 0.1)
    put(state, ask("retried", 2000, excluded=frozenset({"d9"}), age_s=10.0), 0.1)


def test_gain_is_lost_by_own_risk_and_by_victims() -> None:
    placed = put(a_cluster(1, 1), ask("r", 2000), 1.0)
    sure = msgspec.structs.replace(present(placed.predicted), risk=0.0, victims=0.0, future_victims=0.0)
    assert gain(sure) == 1.0
    assert gain(msgspec.structs.replace(sure, risk=0.4, victims=1.0)) == pytest.approx(-0.4)
    assert gain(msgspec.structs.replace(sure, future_victims=1.0)) > gain(msgspec.structs.replace(sure, victims=1.0))


def test_those_that_wait_are_served_by_class_and_then_by_deadline() -> None:
    several = [
        a_waiting("batch", BATCH, 0.0, 2.0),
        a_waiting("standard, later", STANDARD, 0.0, 9.0),
        a_waiting("standard", STANDARD, 0.0, 8.0),
        a_waiting("interactive", INTERACTIVE, 0.0, 50.0),
    ]
    assert order(*several) == ["interactive", "standard", "standard, later", "batch"]


def test_position_in_the_queue_is_the_number_of_those_before() -> None:
    state = a_busy_cluster()
    waiting(state, "one", 2000, 0.1)
    waiting(state, "two", 2000, 0.2)
    waiting(state, "batch", 2000, 0.2, slo_class=BATCH, ttft_s=3.0)
    assert [queued.request_id for queued in state.queued(0.3)] == ["one", "two", "batch"]
    assert state.num_waiting == 3


def test_first_in_order_is_let_in_when_the_queues_have_drained() -> None:
    state = a_busy_cluster(5.0)
    waiting(state, "batch", 2000, 0.1, slo_class=BATCH, ttft_s=1.3, tpot_s=0.05)
    waiting(state, "standard", 2000, 0.2)
    state.handle(FirstToken(request_id=RequestId("queued0 D")), 0.3)
    for made in [c.request_id for c in state._charges if c.request_id.startswith("queued")]:
        ended(state, made, 0.4)
    decided = state.decide(0.5)
    assert [who for who, answer in decided if isinstance(answer, Placement)] == ["standard", "batch"]
    assert state.decide(0.6) == []
    assert state.next_decision_at() is None


def test_request_whose_deadline_passes_in_the_queue_is_refused() -> None:
    state = a_busy_cluster()
    waiting(state, "r", 2000, 0.1)
    decisions: list[Decision] = []
    now = 0.1
    while not decisions:
        at = state.next_decision_at()
        assert at is not None
        now = max(at, now + 0.01)
        decisions = state.decide(now)
    ((who, answer),) = decisions
    assert now > 1.0
    assert who == "r"
    assert isinstance(answer, Rejection)
    assert answer.is_overload


def test_closed_request_waits_no_more() -> None:
    state = a_busy_cluster()
    waiting(state, "r", 2000, 0.1)
    state.handle(RequestClosed(request_id=RequestId("r")), 0.2)
    assert (state.num_waiting, state.decide(99.0)) == (0, [])


def test_request_that_asks_again_while_it_waits_has_one_place() -> None:
    state = a_busy_cluster()
    waiting(state, "r", 2000, 0.1)
    put(state, ask("r", 2000, path=Path.DECODE), 0.2)
    assert state.num_waiting == 0
    assert state.decide(99.0) == []
    state.validate()


def test_those_of_an_ingress_that_is_gone_wait_no_more() -> None:
    state, one, other = a_busy_cluster(), IngressId("one"), IngressId("other")
    assert state.place(ask("a", 2000), 0.1, one) is None
    assert state.place(ask("b", 2000), 0.1, other) is None
    assert state.keep_open(one, frozenset(), 0.2) == ["a"]
    assert [queued.request_id for queued in state.queued(0.2)] == ["b"]


def test_queue_is_bounded() -> None:
    state = a_busy_cluster()
    for number in range(MAX_QUEUE):
        state._admission._queue.add(a_waiting(f"w{number}", STANDARD, 0.0, 1.0))
    answer = state.place(ask("r", 2000), 0.1)
    assert isinstance(answer, Rejection)
    assert answer.is_overload


def verdict(
    risk: float,
    slo_class: SloClass = STANDARD,
    excess: float = 1.0,
    *,
    is_contended: bool = True,
    victims: float = 0.0,
    is_replaced: bool = False,
    is_paused: bool = False,
) -> Verdict:
    """Of a request with this risk and so many victims, on a worker that has other work."""
    request = ask("r", 2000, slo_class=slo_class, is_paused=is_paused)
    asked = PlacementInput(
        request, Slo(1.0, 0.05), {}, LengthHistogram(), 0.0, Others([], 1, 1.0, 1.0, [], 0.0, 0.0, 0.0), 0.0
    )
    worker = WorkerState(a_report("d0"), WorkerModel(LatencyModels().model(KIND)), PathBias(), 0.0)
    worker.reported(a_report("d0", num_running=1), 0.0)
    predicted = Prediction(Path.DECODE, None, worker.worker, 1.8, 0.05, risk, 0.0, 0.1, 1.0, 1.8, 0.05, 0.0, 0.0)
    predicted = msgspec.structs.replace(predicted, victims=victims)
    return judge(
        asked, Choice(Path.DECODE, None, worker, "", None, predicted), excess, is_contended, is_replaced=is_replaced
    )


def test_highest_class_is_let_in_a_little_late_and_not_very_late() -> None:
    assert verdict(1.0) is Verdict.WAIT
    assert verdict(1.0, INTERACTIVE) is Verdict.ADMIT
    assert a_busy_cluster(60.0).place(ask("late", 2000, slo_class=INTERACTIVE), 0.1) is None


def test_highest_class_is_not_let_in_late_at_the_cost_of_others() -> None:
    assert verdict(1.0, INTERACTIVE, victims=HIGH_CLASS_HARM / 2) is Verdict.ADMIT
    assert verdict(1.0, INTERACTIVE, victims=HIGH_CLASS_HARM) is Verdict.WAIT
    assert verdict(1.0, INTERACTIVE, excess=2.0) is Verdict.WAIT


def test_request_whose_worker_failed_is_judged_by_the_harm_that_it_does_alone() -> None:
    assert verdict(1.0, is_replaced=True, excess=4.0) is Verdict.ADMIT
    assert verdict(1.0, is_replaced=True, victims=0.9 * REPLACED_HARM) is Verdict.ADMIT
    assert verdict(0.0, is_replaced=True, victims=REPLACED_HARM) is Verdict.WAIT


def test_paused_request_is_judged_as_a_new_one_and_does_not_take_back_what_it_has_left() -> None:
    for risk in (0.0, 0.5, 1.0):
        for victims in (0.0, 0.4 * REPLACED_HARM, 0.9 * REPLACED_HARM):
            paused = verdict(risk, BATCH, victims=victims, is_replaced=True, is_paused=True)
            assert paused is verdict(risk, BATCH, victims=victims)
    assert verdict(0.5, BATCH, victims=0.9 * REPLACED_HARM, is_replaced=True, is_paused=True) is Verdict.WAIT


def test_tenant_far_above_its_share_needs_a_better_chance_while_others_wait() -> None:
    assert verdict(0.8, excess=1.0) is Verdict.ADMIT
    assert verdict(0.8, excess=2.0) is Verdict.WAIT
    assert verdict(0.8, excess=2.0, is_contended=False) is Verdict.ADMIT
    assert verdict(0.5, excess=4.0) is Verdict.ADMIT


def test_hundreds_at_once_are_all_answered_and_not_all_on_one_worker() -> None:
    state = a_cluster(4, 4)
    answers = [state.place(ask(f"r{number}", 4000), 1.0) for number in range(400)]
    for worker in [f"p{i}" for i in range(4)] + [f"d{i}" for i in range(4)]:
        state.handle(a_report(worker, dict.fromkeys([f"p{i}" for i in range(4)]) if worker[0] == "d" else None), 1.5)
    placed = [answer for answer in answers if isinstance(answer, Placement)]
    assert 8 <= len(placed) < 400
    assert len({answer.generating for answer in placed}) == 8
    for tenths in range(100):
        state.decide(1.5 + tenths / 10)
    assert state.num_waiting == 0


@given(st.floats(0, 1e9), st.floats(0, 1, exclude_max=True))
def test_retry_after_is_in_whole_seconds_near_the_wait(wait_s: float, jitter: float) -> None:
    seconds = retry_after_s(wait_s, jitter)
    assert seconds == int(seconds)
    assert LEAST_RETRY_S <= seconds <= MOST_RETRY_S
    if LEAST_RETRY_S <= wait_s <= MOST_RETRY_S / 1.2:
        assert 0.8 * wait_s <= seconds <= 1.2 * wait_s + 1.0


def test_those_who_come_back_are_spread() -> None:
    state = a_busy_cluster(10.0)
    told = []
    for number in range(20):
        answer = state.place(ask(f"r{number}", 2000, age_s=20.0), 0.1)
        assert isinstance(answer, Rejection)
        told.append(answer.retry_after_s)
    assert max(told) - min(told) >= 0.25 * max(told)


def test_longer_queue_means_a_later_retry() -> None:
    told = []
    for seconds in (2.0, 8.0, 20.0):
        answers = [a_busy_cluster(seconds).place(ask("r", 2000, age_s=20.0), 0.1)]
        told += [answer.retry_after_s for answer in answers if isinstance(answer, Rejection)]
    assert told == sorted(told)
    assert len(told) == 3


STEPS = st.lists(
    st.tuples(st.sampled_from(["ask", "ask", "ask", "close", "wait", "decide"]), st.integers(0, 19), st.floats(0, 1.0)),
    max_size=60,
)


@given(STEPS, st.sampled_from(list(SloClass)))
def test_every_request_that_waits_is_answered_once_or_withdrawn(
    steps: list[tuple[str, int, float]], slo_class: SloClass
) -> None:
    state, now = a_cluster(1, 1), 1.0
    expected: set[str] = set()

    def decide() -> None:
        for who, _ in state.decide(now):
            expected.remove(who)

    for step, number, seconds in steps:
        who = f"r{number}"
        match step:
            case "ask":
                expected.discard(who)
                answer = state.place(ask(who, 1000 * (number + 1), slo_class=slo_class, ttft_s=1.0 + seconds), now)
                if answer is None:
                    expected.add(who)
            case "close":
                expected.discard(who)
                ended(state, who, now)
            case "wait":
                now += seconds
            case "decide":
                decide()
        assert state.num_waiting == len(expected)
        state.validate()
    while (at := state.next_decision_at()) is not None:
        now = max(at, now + 0.1)
        decide()
    assert not expected

"""The queue and its answers, with a policy whose predictions the test sets."""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cluster.messages.ids import IngressId, Path, RequestId, SloClass, WorkerId
from cluster.messages.placement import Placement, Prediction, Rejection
from cluster.messages.views import WaitReason
from router.admission.admission_control import AdmissionControl
from router.admission.recent_failures import FRESH_S
from router.admission.verdict import REPLACED_HARM
from router.admission.waiting_queue import MAX_QUEUE
from router.load.charges import Charges
from router.load.live_workers import LiveWorkers
from router.placement.candidates import Candidates, Choice
from router.placement.placement_input import PlacementInput
from router.placement.placer import Placer
from router.prediction.learned_latency import LatencyModels
from router.quarantine.quarantine import Quarantine
from tests.unit.clusters import SLO, a_report, ask

FOREVER_S = 1e6
INGRESSES = [IngressId("one"), IngressId("two")]


class Admission:
    """An admission control over one decode worker, which is never idle."""

    def __init__(self, *, admits_all: bool = False) -> None:
        self.is_busy = False
        """The policy predicts that a request misses its SLO."""
        self.victims = 0.0
        """The policy predicts that so many others miss theirs."""
        self.fails_on = ""
        """The request on which the policy raises an error."""
        self.num_priced = 0
        self.workers = LiveWorkers()
        self.charges = Charges(self.workers.by_id)
        self.quarantine = Quarantine()
        placer = Placer(SLO, self._policy, self.workers, self.charges)
        self.control = AdmissionControl(SLO, placer, self.workers, self.quarantine, admits_all=admits_all)
        self.report(0.0)

    def report(self, now: float) -> None:
        self.workers.add(a_report("d0"), now)
        self.workers.reported(a_report("d0", num_running=1), now)

    def place(self, request_id: str, now: float, **fields: object) -> Placement | Rejection | None:
        answer = self.control.place(ask(request_id, 1000, **fields), now, None)
        self.control.validate()
        return answer

    def _policy(self, placement_input: PlacementInput, candidates: Candidates, models: LatencyModels) -> Choice | None:
        self.num_priced += 1
        if placement_input.request.request_id == self.fails_on:
            raise ZeroDivisionError
        if not candidates.decodes:
            return None
        worker, risk = candidates.decodes[0], 1.0 if self.is_busy else 0.0
        ttft_s = 10.0 if self.is_busy else 0.1
        prediction = Prediction(Path.DECODE, None, worker.worker, ttft_s, 0.01, risk, self.victims, 0.1, risk)
        return Choice(Path.DECODE, None, worker, "the only worker", None, prediction)


def test_request_is_placed_at_once_where_it_meets_its_slo() -> None:
    admission = Admission()
    assert isinstance(admission.place("r", 0.0), Placement)
    assert admission.charges.find(RequestId("r")) is not None
    assert admission.control.next_decision_at() is None


def test_request_waits_until_the_workers_have_room() -> None:
    admission = Admission()
    admission.is_busy = True
    assert admission.place("r", 0.0) is None
    assert (admission.control.num_waiting, admission.control.decide(0.0)) == (1, [])
    admission.is_busy = False
    at = admission.control.next_decision_at()
    assert at is not None
    ((request_id, answer),) = admission.control.decide(at)
    assert request_id == "r"
    assert isinstance(answer, Placement)


def test_queue_says_why_a_request_waits_and_what_has_changed_since() -> None:
    admission = Admission()
    admission.is_busy = True
    assert admission.place("r", 0.0) is None

    def why() -> WaitReason:
        (waiting,) = admission.control.queued(0.01)
        return waiting.why

    assert why() is WaitReason.LATE
    admission.victims = 3.0
    assert why() is WaitReason.HARM
    admission.is_busy, admission.victims = False, 0.0
    assert why() is WaitReason.DUE


def test_queue_says_that_no_worker_lives_or_has_a_place() -> None:
    admission = Admission()
    admission.is_busy = True
    assert admission.place("r", 0.0) is None
    admission.workers.forget(WorkerId("d0"), 0.0)
    assert [waiting.why for waiting in admission.control.queued(0.01)] == [WaitReason.NO_ROOM]
    admission.control.decide(1.0)
    assert [waiting.why for waiting in admission.control.queued(1.0)] == [WaitReason.NO_WORKER]


def test_request_is_refused_at_its_deadline() -> None:
    admission = Admission()
    admission.is_busy = True
    assert admission.place("r", 0.0) is None
    ((_, answer),) = admission.control.decide(5.0)
    assert isinstance(answer, Rejection)
    assert answer.is_overload


def test_simulated_baseline_admits_every_request() -> None:
    admission = Admission(admits_all=True)
    admission.is_busy = True
    assert isinstance(admission.place("r", 0.0), Placement)


def test_withdrawn_requests_get_no_answer() -> None:
    admission = Admission()
    admission.is_busy = True
    for number, ingress in enumerate([*INGRESSES, INGRESSES[0]]):
        assert admission.control.place(ask(f"r{number}", 1000), 0.0, ingress) is None
    admission.control.withdraw(RequestId("r1"))
    assert admission.control.withdraw_of(INGRESSES[0], frozenset({RequestId("r2")})) == ["r0"]
    assert [request_id for request_id, _ in admission.control.decide(FOREVER_S)] == ["r2"]


def test_request_with_another_cell_to_go_to_does_not_wait_for_a_worker() -> None:
    admission = Admission()
    admission.is_busy = True
    assert admission.place("waits", 0.0, has_other_cell=True) is None
    admission.workers.lose(WorkerId("d0"))
    refused = admission.place("r", 0.01, has_other_cell=True)
    assert isinstance(refused, Rejection) and not refused.is_overload
    ((waited, answer),) = admission.control.decide(0.5)
    assert waited == "waits"
    assert isinstance(answer, Rejection) and not answer.is_overload
    assert admission.place("only cell", 0.5) is None


def test_quarantine_answers_for_requests_that_wait() -> None:
    admission = Admission()
    admission.is_busy = True
    assert admission.place("r", 0.0, digest=b"digest") is None
    for number in (1, 2):
        admission.quarantine.lost(b"digest", WorkerId("d9"), number, 0.0)
    ((_, answer),) = admission.control.decide(0.01)
    assert isinstance(answer, Rejection)
    assert answer.is_quarantined


@pytest.mark.parametrize("number", [1, 3])
def test_queue_is_shown_in_the_order_of_service(number: int) -> None:
    admission = Admission()
    admission.is_busy = True
    for index in range(number):
        assert admission.place(f"r{index}", 0.1 * index) is None
    shown = admission.control.queued(0.5)
    assert [queued.request_id for queued in shown] == [f"r{index}" for index in range(number)]
    assert [queued.num_before for queued in shown] == list(range(number))


REPLACED: dict[str, Any] = {"excluded": frozenset({WorkerId("d9")}), "num_output_tokens": 5, "age_s": 100.0}
"""A stream whose worker died."""


def full(admission: Admission, slo_class: SloClass = SloClass.STANDARD, num_prompt: int = 1000, **fields: Any) -> None:
    """As many requests of a class wait as may, which were asked for before time 0."""
    admission.is_busy = True
    for number in range(MAX_QUEUE):
        request = ask(f"w{slo_class}{number}", num_prompt, slo_class=slo_class, **fields)
        assert admission.control.place(request, -1.0 + number * 1e-4, None) is None


def test_stream_whose_worker_died_is_placed_however_late_it_is() -> None:
    admission = Admission()
    admission.is_busy = True
    assert isinstance(admission.place("r", 0.0, **REPLACED), Placement)


def test_stream_whose_worker_died_waits_for_workers_where_others_pay_for_it() -> None:
    admission = Admission()
    admission.victims = REPLACED_HARM
    assert admission.place("r", 0.0, **REPLACED) is None
    assert admission.control.decide(5.0) == [], "its own objective is long past"
    admission.victims = 0.0
    admission.report(10.0)
    ((_, answer),) = admission.control.decide(10.0)
    assert isinstance(answer, Placement)


def test_streams_whose_worker_died_come_before_new_requests_of_their_class() -> None:
    admission = Admission()
    admission.is_busy, admission.victims = True, REPLACED_HARM
    for name, slo_class, fields in (
        ("new", SloClass.STANDARD, {}),
        ("stream of batch", SloClass.BATCH, REPLACED),
        ("stream", SloClass.STANDARD, REPLACED),
        ("interactive", SloClass.INTERACTIVE, {}),
    ):
        assert admission.place(name, 0.0, slo_class=slo_class, **fields) is None
    shown = [queued.request_id for queued in admission.control.queued(0.0)]
    assert shown == ["interactive", "stream", "new", "stream of batch"]


def test_stream_whose_worker_died_does_not_wait_for_ever() -> None:
    admission = Admission()
    admission.victims = REPLACED_HARM
    assert admission.place("r", 0.0, **REPLACED) is None
    patience_s = SLO.standard.outage_wait_s
    admission.report(patience_s - 0.01)
    assert admission.control.decide(patience_s - 0.01) == []
    ((_, answer),) = admission.control.decide(patience_s)
    assert isinstance(answer, Rejection)
    assert not answer.is_overload


def test_streams_of_a_dead_worker_wait_though_the_queue_or_the_workers_are_full() -> None:
    admission = Admission()
    full(admission)
    admission.victims = REPLACED_HARM
    assert admission.place("queue", 0.0, **REPLACED) is None
    worker = admission.workers.by_id[WorkerId("d0")]
    worker.room = 0
    admission.workers._changed()
    assert admission.place("workers", 0.0, **REPLACED) is None
    assert isinstance(admission.place("new", 0.0), Rejection)


def test_request_is_refused_without_a_price_where_one_like_it_just_was() -> None:
    admission = Admission()
    full(admission)
    before = admission.num_priced
    answers = [admission.place(f"r{number}", 0.0) for number in range(100)]
    assert all(isinstance(answer, Rejection) and answer.is_overload for answer in answers)
    assert admission.num_priced - before <= 1
    told = [answer.retry_after_s for answer in answers if isinstance(answer, Rejection)]
    assert max(told) > min(told), "all of them would come back at once"


def test_ingress_that_does_not_reach_all_workers_has_no_others_refused() -> None:
    admission = Admission()
    full(admission)
    admission.workers.add(a_report("d1"), 0.0)
    admission.workers.suspect(INGRESSES[0], WorkerId("d1"), 0.0)
    assert isinstance(admission.control.place(ask("one", 1000), 0.0, INGRESSES[0]), Rejection)
    before = admission.num_priced
    assert isinstance(admission.control.place(ask("two", 1000), 0.0, INGRESSES[1]), Rejection)
    assert admission.num_priced == before + 1


def test_request_that_needs_less_is_priced_where_the_queue_is_full() -> None:
    admission = Admission()
    full(admission)
    assert isinstance(admission.place("as much", 0.0), Rejection)
    admission.is_busy = False
    assert isinstance(admission.control.place(ask("less", 990), 0.0, None), Placement)
    assert isinstance(admission.control.place(ask("much less", 10), 0.0, None), Placement)


def test_service_that_has_room_admits_though_its_queue_is_full() -> None:
    admission = Admission()
    full(admission)
    assert isinstance(admission.place("refused", 0.0), Rejection)
    admission.is_busy = False
    assert isinstance(admission.place("placed", 2 * FRESH_S), Placement)


def test_hundreds_that_reach_their_deadline_at_once_are_refused_at_the_price_of_one() -> None:
    admission = Admission()
    full(admission)
    admission.report(5.0)
    before = admission.num_priced
    answers = admission.control.decide(5.0)
    assert len(answers) == MAX_QUEUE
    assert admission.num_priced - before <= 2


def test_decision_gives_no_more_answers_than_it_is_asked_for_and_the_rest_next() -> None:
    admission = Admission()
    full(admission)
    admission.report(5.0)
    first, then = admission.control.decide(5.0, 10), admission.control.decide(5.0, MAX_QUEUE)
    assert len(first) == 10
    assert len(then) == MAX_QUEUE - 10
    assert not {request_id for request_id, _ in first} & {request_id for request_id, _ in then}


def test_lower_class_that_fills_the_queue_keeps_no_higher_one_out() -> None:
    admission = Admission()
    full(admission, SloClass.BATCH)
    assert isinstance(admission.place("batch", 0.0, slo_class=SloClass.BATCH), Rejection)
    assert admission.place("standard", 0.0) is None


def test_queue_is_longer_where_more_are_admitted_while_a_request_waits() -> None:
    admission = Admission()
    for number in range(4000):
        request_id = f"placed{number}"
        admission.control.place(ask(request_id, 1000), -2.0 + number / 4000, None)
        admission.charges.release(RequestId(request_id), 0.0)
    full(admission)
    waits = admission.place("r", 0.0)
    assert waits is None


def test_tenant_beyond_its_share_that_is_refused_has_no_other_tenant_refused() -> None:
    admission = Admission()
    for number, tenant in enumerate(["greedy", "greedy", "greedy", "modest"]):
        assert isinstance(admission.place(f"placed{number}", 0.0, tenant=tenant), Placement)
    full(admission, tenant="greedy")
    assert isinstance(admission.place("refused", 0.0, tenant="greedy"), Rejection)
    before = admission.num_priced
    assert isinstance(admission.place("again", 0.0, tenant="greedy"), Rejection)
    assert admission.num_priced == before, "one like it has just failed"
    admission.place("modest", 0.0, tenant="modest")
    assert admission.num_priced == before + 1


def test_request_that_the_scheduler_fails_on_keeps_no_other_from_its_answer() -> None:
    admission = Admission()
    admission.is_busy = True
    for name in ("first", "bad", "last"):
        assert admission.place(name, 0.0) is None
    admission.is_busy, admission.fails_on = False, "bad"
    answers = dict(admission.control.decide(0.5))
    assert {name: type(answer) for name, answer in answers.items()} == {
        "first": Placement,
        "bad": ZeroDivisionError,
        "last": Placement,
    }
    admission.control.validate()
    assert admission.control.num_waiting == 0


class AdmissionMachine(RuleBasedStateMachine):
    """Any history of requests, withdrawals, outages and load: each request has one answer, or was withdrawn."""

    def __init__(self) -> None:
        super().__init__()
        self.admission = Admission()
        self.now = 0.0
        self.waiting: dict[str, IngressId] = {}

    @rule(
        number=st.integers(0, 7),
        ingress=st.sampled_from(INGRESSES),
        slo_class=st.sampled_from(list(SloClass)),
        age_s=st.sampled_from([0.0, 0.5, 100.0]),
        num_output_tokens=st.sampled_from([0, 0, 5]),
    )
    def place(self, number: int, ingress: IngressId, slo_class: SloClass, age_s: float, num_output_tokens: int) -> None:
        request_id = f"r{number}"
        self.waiting.pop(request_id, None)
        self.admission.charges.release(RequestId(request_id), self.now)
        request = ask(request_id, 1000, slo_class=slo_class, age_s=age_s, num_output_tokens=num_output_tokens)
        if self.admission.control.place(request, self.now, ingress) is None:
            self.waiting[request_id] = ingress

    @rule(number=st.integers(0, 7))
    def withdraw(self, number: int) -> None:
        self.waiting.pop(f"r{number}", None)
        self.admission.control.withdraw(RequestId(f"r{number}"))

    @rule(ingress=st.sampled_from(INGRESSES), but=st.frozensets(st.sampled_from([f"r{i}" for i in range(8)])))
    def withdraw_of(self, ingress: IngressId, but: frozenset[Any]) -> None:
        gone = {r for r, of in self.waiting.items() if of == ingress and r not in but}
        assert set(self.admission.control.withdraw_of(ingress, but)) == gone
        self.waiting = {r: of for r, of in self.waiting.items() if r not in gone}

    @rule(is_busy=st.booleans(), victims=st.sampled_from([0.0, 5.0]))
    def load_changes(self, is_busy: bool, victims: float) -> None:
        self.admission.is_busy, self.admission.victims = is_busy, victims

    @rule()
    def worker_is_lost(self) -> None:
        self.admission.workers.lose(WorkerId("d0"))

    @rule()
    def worker_reports(self) -> None:
        self.admission.report(self.now)

    @rule(seconds=st.sampled_from([0.0, 0.05, 1.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.decide()

    @rule()
    def next_decision_comes(self) -> None:
        at = self.admission.control.next_decision_at()
        if at is not None:
            self.now = max(self.now, at)
            self.decide()

    @rule()
    def all_deadlines_pass(self) -> None:
        self.now += FOREVER_S
        self.decide()
        assert not self.waiting

    def decide(self) -> None:
        for request_id, answer in self.admission.control.decide(self.now):
            del self.waiting[request_id]
            is_charged = self.admission.charges.find(request_id) is not None
            assert is_charged == isinstance(answer, Placement)

    @invariant()
    def machine_is_valid(self) -> None:
        self.admission.control.validate()
        self.admission.workers.validate()
        self.admission.charges.validate()

    @invariant()
    def requests_without_an_answer_wait(self) -> None:
        assert self.admission.control.num_waiting == len(self.waiting)
        assert {queued.request_id for queued in self.admission.control.queued(self.now)} == self.waiting.keys()
        assert (self.admission.control.next_decision_at() is None) == (not self.waiting)


TestAdmissionControl = AdmissionMachine.TestCase


def test_requests_that_are_turned_away_come_back_at_different_times_and_no_worker_is_looked_at() -> None:
    admission = Admission()
    away = [admission.control.place(ask(f"r{number}", 1000), 0.0, None, turns_away=True) for number in range(100)]
    waits = [answer.retry_after_s for answer in away if isinstance(answer, Rejection)]
    assert len(waits) == 100
    assert len(set(waits)) > 10
    assert max(waits) <= 60.0
    assert admission.num_priced == 0
    assert admission.control.num_waiting == 0

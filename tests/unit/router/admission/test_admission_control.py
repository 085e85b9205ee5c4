"""The queue and its answers, with a policy whose predictions the test sets."""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cluster.messages.ids import IngressId, Path, RequestId, SloClass, WorkerId
from cluster.messages.placement import Placement, Prediction, Rejection
from router.admission.admission_control import AdmissionControl
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
        if not candidates.decodes:
            return None
        worker, risk = candidates.decodes[0], 1.0 if self.is_busy else 0.0
        ttft_s = 10.0 if self.is_busy else 0.1
        prediction = Prediction(Path.DECODE, None, worker.worker, ttft_s, 0.01, risk, 0.0, 0.1, risk)
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
    )
    def place(self, number: int, ingress: IngressId, slo_class: SloClass, age_s: float) -> None:
        request_id = f"r{number}"
        self.waiting.pop(request_id, None)
        self.admission.charges.release(RequestId(request_id), self.now)
        request = ask(request_id, 1000, slo_class=slo_class, age_s=age_s)
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

    @rule(is_busy=st.booleans())
    def load_changes(self, is_busy: bool) -> None:
        self.admission.is_busy = is_busy

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

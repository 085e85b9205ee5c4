"""No worker lives: requests wait for one as long as their SLO class allows."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.messages.ids import IngressId, RequestId, SloClass, WorkerId
from cluster.messages.placement import Placement, Rejection
from cluster.messages.scheduler_events import RequestClosed
from cluster.slo import SloConfig
from router.admission.admission_control import Answer
from router.admission.waiting_queue import MAX_QUEUE
from router.load.live_workers import REPORT_TIMEOUT_S
from router.state import RouterState
from tests.unit.factories import a_decode_report, a_placement_request, a_prefill_report

WAITS_S = {slo_class: SloConfig().of(slo_class).outage_wait_s for slo_class in SloClass}


def come_back(state: RouterState, now: float, *, number: int = 1) -> None:
    for index in range(number):
        state.handle(a_prefill_report(f"p{index}"), now)
    for index in range(number):
        state.handle(a_decode_report(f"d{index}", " ".join(f"p{other}" for other in range(number))), now)


def lose_all(state: RouterState, now: float) -> None:
    for worker in state.view(now).workers:
        state.disconnected(worker.worker)


@pytest.mark.parametrize("slo_class", SloClass)
def test_request_waits_for_a_worker_as_long_as_its_class_allows(slo_class: SloClass) -> None:
    state = RouterState()
    assert state.place(a_placement_request("r", slo_class=slo_class), 100.0) is None
    assert state.decide(100.0 + WAITS_S[slo_class] - 0.01) == []
    ((request_id, answer),) = state.decide(100.0 + WAITS_S[slo_class])
    assert request_id == "r"
    assert isinstance(answer, Rejection)
    assert (answer.why, answer.is_overload) == ("no worker can be reached", False)
    assert answer.retry_after_s > 0
    assert state.num_waiting == 0


def test_request_that_has_waited_long_is_served_as_one_that_has_just_come() -> None:
    state = RouterState()
    state.place(a_placement_request("r", age_s=3.0), 0.0)
    come_back(state, 50.0)
    ((_, answer),) = state.decide(50.0)
    assert isinstance(answer, Placement)


def test_stream_in_the_middle_goes_on_where_the_worker_that_it_was_lost_with_has_recovered() -> None:
    state = RouterState()
    come_back(state, 0.0)
    lose_all(state, 0.0)
    both = frozenset({WorkerId("p0"), WorkerId("d0")})
    request = a_placement_request("r", num_output_tokens=5, excluded=both, lost=both)
    assert state.place(request, 1.0) is None
    come_back(state, 20.0)
    ((_, answer),) = state.decide(20.0)
    assert isinstance(answer, Placement)


def test_workers_that_are_silent_at_once_are_an_outage_too() -> None:
    state = RouterState()
    come_back(state, 0.0)
    assert state.place(a_placement_request("r"), REPORT_TIMEOUT_S + 1.0) is None
    come_back(state, REPORT_TIMEOUT_S + 2.0)
    ((_, answer),) = state.decide(REPORT_TIMEOUT_S + 2.0)
    assert isinstance(answer, Placement)


def test_request_that_failed_on_all_living_workers_is_refused_at_once() -> None:
    state = RouterState()
    come_back(state, 0.0)
    request = a_placement_request("r", excluded=frozenset({WorkerId("p0"), WorkerId("d0")}))
    assert isinstance(state.place(request, 0.0), Rejection)


def test_queue_is_bounded_and_those_in_it_keep_their_place() -> None:
    state = RouterState()
    for number in range(MAX_QUEUE):
        assert state.place(a_placement_request(f"r{number}"), 0.0) is None
    assert isinstance(state.place(a_placement_request("more"), 0.0), Rejection)
    assert state.decide(1.0) == []
    assert state.num_waiting == MAX_QUEUE


def test_who_leaves_while_waiting_leaves_nothing() -> None:
    state, ingress = RouterState(), IngressId("one")
    state.place(a_placement_request("closed"), 0.0, ingress)
    state.place(a_placement_request("lost"), 0.0, ingress)
    state.handle(RequestClosed(request_id=RequestId("closed")), 1.0)
    assert state.withdraw_of(ingress) == ["lost"]
    come_back(state, 2.0)
    assert state.decide(2.0) == []
    assert all(worker.num_placed == 0 for worker in state.view(2.0).workers)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 300), st.integers(1, 3))
def test_those_who_waited_are_all_answered_and_no_worker_gets_more_than_it_takes(num_waiting: int, number: int) -> None:
    state = RouterState()
    for index in range(num_waiting):
        assert state.place(a_placement_request(f"r{index}"), 0.0) is None
    now, answers = 30.0, list[Answer]()
    while state.num_waiting:
        come_back(state, now, number=number)
        answers += [answer for _, answer in state.decide(now)]
        state.validate()
        now += 0.1
        assert now < 30.0 + WAITS_S[SloClass.STANDARD], "somebody waits for ever"
    assert len(answers) == num_waiting
    placed = Counter(answer.generating for answer in answers if isinstance(answer, Placement))
    rooms = {worker.worker: worker.max_requests for worker in state.view(now).workers}
    assert placed
    assert all(count <= rooms[worker] for worker, count in placed.items())


def test_worker_that_the_request_was_lost_with_and_that_seems_to_live_is_waited_for() -> None:
    """Its last report came after the loss was told."""
    state = RouterState()
    come_back(state, 0.0)
    both = frozenset({WorkerId("p0"), WorkerId("d0")})
    request = a_placement_request("r", num_output_tokens=5, excluded=both, lost=both)
    assert state.place(request, 1.0) is None
    state.handle(a_prefill_report("p1"), 3.0)
    ((_, answer),) = state.decide(3.0)
    assert isinstance(answer, Placement)
    assert answer.generating == "p1"


def test_worker_that_goes_on_reporting_has_recovered() -> None:
    state = RouterState()
    both = frozenset({WorkerId("p0"), WorkerId("d0")})
    come_back(state, 0.0)
    assert state.place(a_placement_request("r", excluded=both, lost=both), 0.0) is None
    for now in (2.0, 4.0, 6.0):
        come_back(state, now)
        assert state.decide(now) == []
    come_back(state, 7.0)
    ((_, answer),) = state.decide(7.0)
    assert isinstance(answer, Placement)

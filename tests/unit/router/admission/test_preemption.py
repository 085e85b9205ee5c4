"""Who pauses for whom, on a decode worker whose memory requests of lower classes fill."""

from typing import Any

import msgspec
import pytest

from cluster.messages.ids import RequestId, SloClass
from cluster.messages.placement import Placement, PlacementRequest, Prediction, Rejection, Slo
from cluster.messages.scheduler_events import FirstToken
from router.admission.preemption import GONE_WITHIN_S, LEAST_RUN_S, LONGEST_PAUSE_S, MAX_PAUSES
from tests.expected import present
from tests.unit.clusters import SLO, a_report, ask, ended, put
from tests.unit.router.admission.full_workers import (
    BATCH,
    BEGAN,
    INGRESS,
    INTERACTIVE,
    NOW,
    NUM_LONG,
    STANDARD,
    WORKERS,
    a_full_worker,
    asks,
    comes_back,
    decode_long,
    report,
)


def predicted(placement: Placement) -> Prediction:
    return present(placement.predicted)


def slo(placement: Placement) -> Slo:
    return present(placement.slo)


def test_batch_request_pauses_for_an_interactive_one_that_would_be_late() -> None:
    late, _ = asks(a_full_worker(preempts=False))
    assert isinstance(late, Placement)
    assert predicted(late).ttft_s > slo(late).ttft_s
    answer, pauses = asks(a_full_worker())
    assert isinstance(answer, Placement)
    assert predicted(answer).ttft_s < slo(answer).ttft_s / 2
    assert len(pauses) == 1


def test_batch_request_pauses_for_an_interactive_one_that_would_wait() -> None:
    waits, _ = asks(a_full_worker(preempts=False), age_s=1.0)
    assert waits is None
    answer, pauses = asks(a_full_worker(), age_s=1.0)
    assert isinstance(answer, Placement)
    assert len(pauses) == 1
    assert "1 requests of lower classes paused" in answer.why


def test_each_pause_is_given_once_to_the_ingress_that_has_the_request() -> None:
    state = a_full_worker()
    state.place(ask("r", 12_000, slo_class=INTERACTIVE), NOW, INGRESS)
    ((ingress, pause, slo_class),) = state.take_pauses()
    assert ingress is None
    assert slo_class is BATCH
    assert pause.request_id.startswith("d0.")
    assert pause.attempt == 1
    assert state.take_pauses() == []


@pytest.mark.parametrize(
    ("running", "asking"), [(BATCH, BATCH), (STANDARD, STANDARD), (STANDARD, BATCH), (INTERACTIVE, INTERACTIVE)]
)
def test_only_a_lower_class_pauses(running: SloClass, asking: SloClass) -> None:
    _, pauses = asks(a_full_worker(running), slo_class=asking, tpot_s=0.05, ttft_s=1.0)
    assert pauses == []


def test_class_whose_objective_does_not_bear_a_pause_pays_for_none() -> None:
    _, pauses = asks(a_full_worker(STANDARD))
    assert pauses == []


@pytest.mark.parametrize("fields", [{"can_pause": False}, {"num_pauses": MAX_PAUSES}])
def test_request_that_cannot_pause_or_has_paused_often_runs_to_its_end(fields: dict[str, Any]) -> None:
    _, pauses = asks(a_full_worker(**fields))
    assert pauses == []


def test_request_that_has_just_begun_to_decode_does_not_pause() -> None:
    state = a_full_worker(number=0)
    decode_long(state, "d0", NOW - BEGAN, NOW - LEAST_RUN_S / 2, [f"new{number}" for number in range(NUM_LONG)])
    _, pauses = asks(state)
    assert pauses == []


def test_request_that_meets_its_slo_anyway_has_nobody_pause() -> None:
    answer, pauses = asks(a_full_worker(number=3))
    assert isinstance(answer, Placement)
    assert pauses == []


def test_request_that_would_be_late_all_the_same_has_nobody_pause() -> None:
    _, pauses = asks(a_full_worker(), age_s=50.0)
    assert pauses == []


def test_paused_request_stays_charged_until_its_ingress_asks_anew() -> None:
    state = a_full_worker()
    _, (pause,) = asks(state)
    assert state.view(NOW).workers[0].num_placed == NUM_LONG + 1
    assert comes_back(state, pause, NOW + 0.1) is None
    assert state.view(NOW).workers[0].num_placed == NUM_LONG
    ended(state, "r", NOW + 1.0)
    ((request_id, answer),) = state.decide(NOW + 1.5)
    assert request_id == pause.request_id
    assert isinstance(answer, Placement)


def test_pause_that_no_ingress_has_heard_of_keeps_no_room_and_is_not_asked_for_again() -> None:
    state = a_full_worker()
    asked = set[RequestId]()
    now = NOW
    for number in range(8):
        _, pauses = asks(state, now, name=f"r{number}")
        assert not asked & {pause.request_id for pause in pauses}
        asked |= {pause.request_id for pause in pauses}
        now += 2 * GONE_WITHIN_S
        report(state, WORKERS, now)
    assert len(asked) <= NUM_LONG


def test_paused_request_is_placed_in_the_end_however_full_the_workers_are() -> None:
    state = a_full_worker()
    _, (pause,) = asks(state)
    assert comes_back(state, pause, NOW + 0.1) is None
    now = NOW + 0.1
    while now < NOW + 0.1 + LONGEST_PAUSE_S:
        assert state.decide(now) == []
        report(state, WORKERS, now)
        now += 0.5
    ((request_id, answer),) = state.decide(now + 0.1)
    assert request_id == pause.request_id
    assert isinstance(answer, Placement)


def test_freed_place_goes_to_the_request_that_has_paused_for_long_and_not_to_a_new_one() -> None:
    """All workers have as many requests as they take, and new ones come for each place."""
    state, now, answer = a_full_worker(), NOW + 0.1, None
    _, (pause,) = asks(state)
    assert comes_back(state, pause, now) is None
    full = msgspec.structs.replace(a_report("d0"), max_requests=NUM_LONG + 1)
    running, number = ["r"], 0
    while answer is None and now < NOW + 3 * LONGEST_PAUSE_S:
        now += 0.1
        state.handle(full, now)
        if running:
            ended(state, running.pop(0), now, num_output_tokens=5)
        for _ in range(3):
            number += 1
            asked = ask(f"new{number}", 64, slo_class=INTERACTIVE, max_output_tokens=5)
            if isinstance(state.place(asked, now), Placement):
                running.append(asked.request_id)
        state.take_pauses()
        answer = dict(state.decide(now + 0.01)).get(pause.request_id)
    assert isinstance(answer, Placement)
    assert now < NOW + LONGEST_PAUSE_S + 2.0


def test_paused_request_that_no_worker_takes_is_told_so() -> None:
    state = a_full_worker()
    _, (pause,) = asks(state)
    now = NOW + 0.1
    assert comes_back(state, pause, now) is None
    closed = msgspec.structs.replace(a_report("d0"), max_requests=1)
    state.handle(closed, now)
    (shown,) = state.queued(now)
    assert shown.is_paused
    assert shown.gives_up_s == pytest.approx(SLO.batch.outage_wait_s)
    for _ in range(30):
        now += 1.0
        state.handle(closed, now)
        assert state.decide(now) == []
    assert present(state.next_decision_at()) > now, "it is looked at now and then, and not all the time"
    until = NOW + 0.2 + SLO.batch.outage_wait_s
    state.handle(closed, until)
    ((_, refusal),) = state.decide(until)
    assert isinstance(refusal, Rejection)
    assert refusal.why == "it was paused, and no worker has had room for it since"


def test_paused_request_outlasts_its_age_and_a_full_worker() -> None:
    """Its client has had its first token long ago."""
    state = a_full_worker()
    _, (pause,) = asks(state)
    assert comes_back(state, pause, NOW + 0.1, age_s=1000.0) is None
    assert state.num_waiting == 1


def test_request_of_a_lower_class_than_all_that_run_is_refused_as_before() -> None:
    request: PlacementRequest = ask("r", 12_000, slo_class=BATCH, age_s=1000.0)
    with_pauses, without_pauses = a_full_worker(), a_full_worker(preempts=False)
    assert isinstance(with_pauses.place(request, NOW), Rejection)
    assert isinstance(without_pauses.place(request, NOW), Rejection)


@pytest.mark.parametrize(("attempt", "is_learned"), [(1, True), (2, False)])
def test_times_of_a_request_that_went_on_elsewhere_are_those_of_no_single_placement(
    attempt: int, is_learned: bool
) -> None:
    state = a_full_worker(number=0)
    put(state, ask("r", 1000, attempt=attempt), NOW)
    state.handle(FirstToken(request_id=RequestId("r")), NOW + 0.2)
    ended(state, "r", NOW + 2.0, num_output_tokens=50, ttft_s=0.2, tpot_s=0.03)
    assert any(seen.ttft is not None for seen in state.models.bias.errors().values()) is is_learned

"""Who pauses for whom, on a decode worker whose memory requests of lower classes fill."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.messages.ids import IngressId, Path, RequestId, SloClass
from cluster.messages.placement import Placement, PlacementRequest, Prediction, Rejection, Slo
from cluster.messages.scheduler_events import FirstToken, Pause
from router.admission.preemption import (
    BURST_S,
    GONE_WITHIN_S,
    LEAST_COST_S,
    LEAST_RUN_S,
    LONGEST_PAUSE_S,
    MAX_PAUSES,
    TIME_SHARE,
)
from router.state import RouterState
from tests.expected import present
from tests.unit.clusters import SLO, a_report, ask, ended, put

INTERACTIVE, STANDARD, BATCH = SloClass
LONG = 15_500
"""Prompt tokens of which NUM_LONG fill a worker's memory."""
NUM_LONG = 20
WORKERS = ["d0"]
BEGAN = 60.0
"""When the long requests begin to decode. They were placed at time 0."""
NOW = BEGAN + 3.0
INGRESS = IngressId("one")


def a_full_worker(
    slo_class: SloClass = BATCH, number: int = NUM_LONG, num_workers: int = 1, *, preempts: bool = True, **fields: Any
) -> RouterState:
    """Decode workers that decode long requests since BEGAN. It is NOW."""
    state = RouterState(SLO, preempts=preempts)
    workers = [f"d{number}" for number in range(num_workers)]
    report(state, workers, 0.0)
    for worker in workers:
        decode_long(state, worker, 0.0, BEGAN, [f"{worker}.{n}" for n in range(number)], slo_class, **fields)
    report(state, workers, NOW)
    return state


def decode_long(
    state: RouterState,
    worker: str,
    placed_at: float,
    began_at: float,
    names: list[str],
    slo_class: SloClass = BATCH,
    **fields: Any,
) -> None:
    others = frozenset(view.worker for view in state.view(placed_at).workers if view.worker != worker)
    long = {"slo_class": slo_class, "can_pause": True, "excluded": others, "path": Path.DECODE} | fields
    for name in names:
        put(state, ask(name, LONG, **long), placed_at)
    for name in names:
        state.handle(FirstToken(request_id=RequestId(name)), began_at)


def report(state: RouterState, workers: list[str], now: float) -> None:
    for worker in workers:
        state.handle(a_report(worker), now)


def asks(
    state: RouterState, now: float = NOW, slo_class: SloClass = INTERACTIVE, name: str = "r", **fields: Any
) -> tuple[Placement | Rejection | None, list[Pause]]:
    """The answer to a request, and the pauses for it."""
    answer = state.place(ask(name, 12_000, slo_class=slo_class, **fields), now)
    state.validate()
    return answer, [pause for _, pause, _ in state.take_pauses()]


def predicted(placement: Placement) -> Prediction:
    return present(placement.predicted)


def slo(placement: Placement) -> Slo:
    return present(placement.slo)


def comes_back(state: RouterState, pause: Pause, now: float, **fields: Any) -> Placement | Rejection | None:
    """The ingress has paused the request, and asks for it anew."""
    asked = ask(
        pause.request_id,
        LONG + 100,
        num_output_tokens=100,
        slo_class=BATCH,
        can_pause=True,
        **({"attempt": pause.attempt + 1, "num_pauses": 1, "is_paused": True} | fields),
    )
    answer = state.place(asked, now)
    state.validate()
    return answer


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


def test_room_that_is_being_left_is_not_asked_for_twice() -> None:
    state = a_full_worker()
    _, first = asks(state, name="r1")
    _, second = asks(state, name="r2")
    asked = [pause.request_id for pause in [*first, *second]]
    assert 1 <= len(set(asked)) == len(asked) <= 2


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


@settings(max_examples=40, deadline=None)
@given(
    arrivals=st.lists(
        st.tuples(st.sampled_from([0.0, 0.1, 1.0, 5.0]), st.sampled_from(list(SloClass)), st.booleans()), max_size=30
    )
)
def test_pauses_are_bounded_in_any_rush(arrivals: list[tuple[float, SloClass, bool]]) -> None:
    """No request pauses more than MAX_PAUSES times, none for its equals, and all together within the budget."""
    state, now = a_full_worker(num_workers=2), NOW
    num_pauses: dict[RequestId, int] = {}
    for number, (gap_s, slo_class, is_answered) in enumerate(arrivals):
        now += gap_s
        report(state, ["d0", "d1"], now)
        _, pauses = asks(state, now, slo_class, f"r{number}")
        assert not pauses or slo_class is not BATCH
        for pause in pauses:
            num_pauses[pause.request_id] = num_pauses.get(pause.request_id, 0) + 1
            if is_answered:
                comes_back(state, pause, now, num_pauses=num_pauses[pause.request_id])
        state.decide(now)
        for _, pause, _ in state.take_pauses():
            num_pauses[pause.request_id] = num_pauses.get(pause.request_id, 0) + 1
    assert all(number <= MAX_PAUSES for number in num_pauses.values())
    assert sum(num_pauses.values()) * LEAST_COST_S <= 2 * (BURST_S + TIME_SHARE * now)


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

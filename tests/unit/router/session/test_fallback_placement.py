from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.messages.ids import Path, RequestId, SloClass, WorkerId
from cluster.messages.placement import Pinned, Placement, Rejection, Slo
from cluster.messages.views import RosterEntry
from cluster.slo import SloConfig
from router.session.fallback_placement import FallbackPlacement
from tests.unit.factories import MANY, a_placement_request, an_entry


def a_choice(*workers: RosterEntry) -> FallbackPlacement:
    choice = FallbackPlacement(SloConfig())
    choice.workers = workers
    return choice


def placed(choice: FallbackPlacement, number: int, **fields: Any) -> Placement:
    """One more open request."""
    request = a_placement_request(f"r{number}", **fields)
    answer = choice.place(request)
    assert isinstance(answer, Placement)
    choice.placed(request.request_id, answer.generating)
    return answer


def test_whole_request_runs_on_a_decode_worker_with_its_objectives() -> None:
    answer = placed(a_choice(an_entry("p0"), an_entry("d0")), 1, slo_class=SloClass.BATCH, tpot_s=0.1)
    assert (answer.path, answer.prefill, answer.decode) == (Path.DECODE, None, "d0")
    assert answer.slo == Slo(SloConfig().batch.ttft_s, 0.1)
    assert "away" in answer.why


@given(st.lists(st.booleans(), max_size=60))
def test_open_requests_of_the_workers_never_differ_by_more_than_the_closed_ones(ends: list[bool]) -> None:
    choice = a_choice(*(an_entry(f"d{i}") for i in range(3)))
    open_on: dict[str, WorkerId] = {}
    for number, is_end in enumerate(ends):
        if is_end and open_on:
            request_id, _ = open_on.popitem()
            choice.closed(RequestId(request_id))
            continue
        least = min(list(open_on.values()).count(WorkerId(f"d{i}")) for i in range(3))
        worker = placed(choice, number).generating
        assert list(open_on.values()).count(worker) == least
        open_on[f"r{number}"] = worker


def test_equally_loaded_workers_take_turns() -> None:
    choice = a_choice(*(an_entry(f"d{i}") for i in range(3)))
    turns = [placed(choice, number).generating for number in range(6)]
    assert sorted(turns[:3]) == ["d0", "d1", "d2"]
    assert turns[3:] == turns[:3]


def test_requests_that_the_scheduler_has_placed_count_too() -> None:
    choice = a_choice(an_entry("d0"), an_entry("d1"))
    for number in range(2):
        choice.placed(RequestId(f"old{number}"), WorkerId("d0"))
    assert [placed(choice, number).decode for number in range(2)] == ["d1", "d1"]


def test_worker_that_failed_is_left_out() -> None:
    choice = a_choice(an_entry("d0"), an_entry("d1"))
    assert {placed(choice, n, excluded=frozenset({"d0"})).decode for n in range(3)} == {"d1"}


def test_draining_worker_gets_what_no_other_worker_takes() -> None:
    draining = msgspec.structs.replace(an_entry("d0"), is_draining=True)
    choice = a_choice(draining, an_entry("p0", max_requests=1))
    assert [placed(choice, number).generating for number in range(3)] == ["p0", "d0", "d0"]


def test_prefill_worker_serves_where_no_decode_worker_can() -> None:
    answer = placed(a_choice(an_entry("p0"), an_entry("d0")), 1, excluded=frozenset({"d0"}))
    assert (answer.path, answer.prefill, answer.decode) == (Path.PREFILL, "p0", None)


@pytest.mark.parametrize(("path", "worker"), [(Path.DECODE, "d0"), (Path.PREFILL, "p0")])
def test_path_that_is_asked_for_is_kept(path: Path, worker: str) -> None:
    assert placed(a_choice(an_entry("p0"), an_entry("d0")), 1, path=path).generating == worker


def test_handoff_that_is_asked_for_is_refused() -> None:
    answer = a_choice(an_entry("p0"), an_entry("d0")).place(a_placement_request(path=Path.PREFILL_DECODE))
    assert isinstance(answer, Rejection)
    assert (answer.why, answer.is_overload) == (
        "the Scheduler is away, and no worker takes a request on path P->D now",
        False,
    )


def test_workers_take_no_more_than_they_take() -> None:
    choice = a_choice(an_entry("d0", max_requests=2))
    for number in range(2):
        placed(choice, number)
    refused = choice.place(a_placement_request())
    assert isinstance(refused, Rejection)
    assert refused.is_overload
    choice.closed(RequestId("r0"))
    assert placed(choice, 9).decode == "d0"


def test_without_a_word_from_the_scheduler_nobody_is_known() -> None:
    refused = a_choice().place(a_placement_request())
    assert isinstance(refused, Rejection)
    assert (refused.is_overload, refused.retry_after_s >= 1) == (False, True)


def test_request_that_is_placed_again_counts_once() -> None:
    choice = a_choice(an_entry("d0", max_requests=MANY), an_entry("d1"))
    choice.placed(RequestId("r"), WorkerId("d0"))
    choice.placed(RequestId("r"), WorkerId("d1"))
    assert placed(choice, 1).decode == "d0"
    choice.closed(RequestId("r"))
    choice.closed(RequestId("r"))
    assert placed(choice, 2).decode == "d1"


BOTH = frozenset({WorkerId("p0"), WorkerId("d0")})
ONE = frozenset({WorkerId("d0")})


@pytest.mark.parametrize(
    ("excluded", "lost", "waits"),
    [(BOTH, BOTH, True), (BOTH, ONE, True), (ONE, ONE, False), (BOTH, frozenset(), False)],
    ids=["lost with all", "failed on all, lost with one", "one is left", "failed on workers that live"],
)
def test_request_that_was_lost_with_all_workers_waits_for_others(
    excluded: frozenset[WorkerId], lost: frozenset[WorkerId], *, waits: bool
) -> None:
    choice = a_choice(an_entry("p0"), an_entry("d0"))
    request = a_placement_request(excluded=excluded, lost=lost, slo_class=SloClass.BATCH)
    assert choice.outage_wait_s(request) == (SloConfig().batch.outage_wait_s if waits else 0.0)


def test_probe_waits_for_the_scheduler_and_is_placed_nowhere_else() -> None:
    choice = a_choice(an_entry("d0"))
    probe = a_placement_request("probe", path=Path.DECODE, pinned=Pinned(None, WorkerId("d0")))
    assert isinstance(choice.place(probe), Rejection)
    choice.workers = ()
    assert choice.outage_wait_s(probe) == 0.0

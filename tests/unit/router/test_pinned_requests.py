"""Requests of the quality probe, which may use the workers that they name and no others, and workers in quarantine."""

import pytest

from cluster.messages.ids import Path, RequestId, SloClass, WorkerId
from cluster.messages.placement import Pinned, Placement, Rejection
from cluster.messages.scaling import ScalingAsk
from cluster.messages.scheduler_events import RequestClosed
from router.state import RouterState
from router.trust.quarantined_workers import KEPT_S
from tests.unit.factories import a_decode_report, a_placement_request, a_prefill_report, ids

LATER_S = 0.1
"""Longer than the sorted workers are used again."""


def a_state() -> RouterState:
    state = RouterState()
    reports(state, 0.0)
    return state


def reports(state: RouterState, now: float, decodes: str = "d0 d1 d2") -> None:
    for prefill in ("p0", "p1"):
        state.handle(a_prefill_report(prefill), now)
    for decode in decodes.split():
        state.handle(a_decode_report(decode, "p0 p1"), now)


def probe(
    state: RouterState, path: Path, prefill: str | None, decode: str | None, now: float = 0.0
) -> Placement | None:
    pinned = Pinned(WorkerId(prefill) if prefill else None, WorkerId(decode) if decode else None)
    request = a_placement_request("probe", path=path, pinned=pinned, slo_class=SloClass.BATCH)
    answer = state.place(request, now)
    state.handle(RequestClosed(request_id=RequestId("probe"), num_output_tokens=4, ttft_s=9.0, tpot_s=9.0), now)
    state.validate()
    return answer if isinstance(answer, Placement) else None


def placed(state: RouterState, now: float) -> set[str]:
    """Where requests of clients are placed."""
    used: set[str] = set()
    for number in range(24):
        answer = state.place(a_placement_request(f"r{number}"), now)
        assert isinstance(answer, Placement)
        used |= {worker for worker in (answer.prefill, answer.decode) if worker is not None}
        state.handle(RequestClosed(request_id=RequestId(f"r{number}")), now)
    state.validate()
    return used


@pytest.mark.parametrize(
    ("path", "prefill", "decode"),
    [(Path.PREFILL, "p1", None), (Path.DECODE, None, "d2"), (Path.PREFILL_DECODE, "p1", "d0")],
)
def test_pinned_request_runs_on_the_workers_that_it_names(path: Path, prefill: str | None, decode: str | None) -> None:
    state = a_state()
    for _ in range(5):
        answer = probe(state, path, prefill, decode)
        assert answer is not None
        assert (answer.path, answer.prefill, answer.decode) == (path, prefill, decode)


def test_pinned_request_is_refused_if_its_worker_is_gone_or_not_linked() -> None:
    state = a_state()
    assert probe(state, Path.DECODE, None, "d9") is None
    state.handle(a_decode_report("d5", ""), 0.0)
    assert probe(state, Path.PREFILL_DECODE, "p0", "d5", LATER_S) is None


def test_pinned_request_tells_nothing_of_what_clients_ask_for() -> None:
    state = a_state()
    before = state.load.read(ScalingAsk([]), "x", 0.0)
    assert probe(state, Path.DECODE, None, "d1") is not None
    after = state.load.read(ScalingAsk([]), "x", 0.0)
    assert (after.num_arrived, after.num_missed, after.num_good) == (
        before.num_arrived,
        before.num_missed,
        before.num_good,
    )
    assert all(seen.ttft is None for seen in state.models.bias.errors().values())
    assert state.status.read(0.0).paths == []


def test_worker_in_quarantine_gets_probes_and_nothing_else() -> None:
    state = a_state()
    change = state.quarantined.told({WorkerId("d1"): "wrong answers"}, 0.0)
    assert (change.begun, change.ended) == ({WorkerId("d1"): "wrong answers"}, [])
    assert "d1" not in placed(state, LATER_S)
    assert probe(state, Path.DECODE, None, "d1", LATER_S) is not None
    (shown,) = [worker for worker in state.view(LATER_S).workers if worker.quarantined]
    assert (shown.worker, shown.quarantined) == ("d1", "wrong answers")
    assert state.quarantined.told({}, LATER_S).ended == ["d1"]
    assert "d1" in placed(state, 2 * LATER_S)


def test_pool_whose_workers_are_all_in_quarantine_keeps_them() -> None:
    state = a_state()
    state.quarantined.told(dict.fromkeys(ids("d0 d1 d2 p0"), "wrong"), 0.0)
    used = placed(state, LATER_S)
    assert used & {"d0", "d1", "d2"}
    assert "p0" not in used


def test_pool_keeps_its_workers_in_quarantine_if_all_others_drain() -> None:
    state = a_state()
    state.workers.drain(ids("d0 d2"))
    state.quarantined.told(dict.fromkeys(ids("d1 p0"), "wrong"), 0.0)
    decodes = state.workers.by_pool(LATER_S).decodes
    assert [worker.worker for worker in decodes] == ["d1"]
    assert "d1" in placed(state, LATER_S)
    state.workers.drain(ids("d0"))
    assert placed(state, 2 * LATER_S) & {"d0", "d1", "d2"} == {"d2"}


def test_quarantine_that_no_ingress_tells_of_any_more_ends() -> None:
    state = a_state()
    state.quarantined.told({WorkerId("d1"): "wrong"}, 0.0)
    reports(state, KEPT_S - 1.0)
    assert "d1" not in placed(state, KEPT_S - 1.0)
    reports(state, KEPT_S + 1.0)
    assert "d1" in placed(state, KEPT_S + 1.0)


def test_probe_is_refused_while_requests_of_clients_wait() -> None:
    state = RouterState()
    assert state.place(a_placement_request("waits"), 0.0) is None, "no worker lives"
    pinned = Pinned(None, WorkerId("d0"))
    answer = state.place(a_placement_request("probe", path=Path.DECODE, pinned=pinned), 0.0)
    assert isinstance(answer, Rejection)
    assert answer.is_overload

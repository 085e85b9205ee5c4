"""What the Scheduler shows of its state in metrics."""

import pytest

from cluster.messages.ids import IngressId, SloClass, WorkerId
from cluster.messages.reports import WorkerLoad
from cluster.messages.scheduler_events import WorkerLeft, WorkerLost
from cluster.messages.transport import LinkSpeed
from cluster.metrics import handoffs
from cluster.metrics.page import scrape
from router import deployment
from router.deployment import export
from router.state import RouterState
from tests.unit.clusters import SLO, a_cluster, a_report, ask


def shown(name: str) -> dict[tuple[str, ...], float]:
    return {tuple(labels.values()): value for labels, value in scrape("scheduler", "s").values(name)}


def test_each_worker_is_shown_as_it_has_reported_last() -> None:
    state = RouterState(SLO)
    load = WorkerLoad(num_running=3, num_waiting=2, kv_cache_usage=0.25)
    for worker, now in (("p0", 1.0), ("d0", 5.0)):
        state.handle(a_report(worker, **{name: getattr(load, name) for name in load.__struct_fields__}), now)
    export(state, 5.5)
    assert shown("baton_worker_report_age_seconds") == {("prefill", "p0"): 4.5, ("decode", "d0"): 0.5}
    assert shown("baton_worker_kv_usage_ratio")["decode", "d0"] == 0.25
    assert shown("baton_worker_running_requests")["decode", "d0"] == 3
    assert shown("baton_worker_waiting_requests")["decode", "d0"] == 2


def test_requests_that_wait_are_shown_by_class() -> None:
    state = RouterState(SLO)
    for number, slo_class in enumerate((SloClass.BATCH, SloClass.BATCH, SloClass.INTERACTIVE)):
        assert state.place(ask(f"r{number}", 100, slo_class=slo_class), 0.0) is None, "no worker lives: it waits"
    export(state, 0.1)
    assert shown("baton_queue_requests") == {("interactive",): 1, ("standard",): 0, ("batch",): 2}


OF_WORKERS = (
    "baton_placed_requests",
    "baton_worker_report_age_seconds",
    "baton_worker_kv_usage_ratio",
    "baton_worker_running_requests",
    "baton_worker_waiting_requests",
    "baton_links",
    "baton_link_latency_seconds",
    "baton_link_bytes_per_second",
)


def test_workers_that_come_and_go_leave_no_series_behind() -> None:
    state = a_cluster(0, 0)
    for number in range(200):
        state.handle(a_report(f"p{number}"), float(number))
        state.handle(a_report(f"d{number}", {f"p{number}": LinkSpeed(0.001, 1e9)}), float(number))
        export(state, float(number))
        for pool in "pd":
            state.handle(WorkerLeft(worker=WorkerId(f"{pool}{number}")), float(number))
    export(state, 200.0)
    assert {name: len(shown(name)) for name in OF_WORKERS} == dict.fromkeys(OF_WORKERS, 0)


def test_only_the_slowest_links_and_the_longest_holds_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handoffs, "MAX_LINKS", 50)
    monkeypatch.setattr(deployment, "MAX_HOLDS", 10)
    state = RouterState(SLO)
    prefills = [f"p{number}" for number in range(4)]
    for prefill in prefills:
        state.handle(a_report(prefill), 0.0)
    for number in range(40):
        state.handle(a_report(f"d{number}", dict.fromkeys(prefills, LinkSpeed(0.001, 1e9 + number))), 0.0)
    for number in range(30):
        state.handle(WorkerLost(worker=WorkerId("p0")), 0.0, IngressId(f"i{number}"))
    export(state, 0.1)
    assert len(shown("baton_hold_seconds")) == 10
    assert len(shown("baton_link_latency_seconds")) == len(shown("baton_link_bytes_per_second")) == 50

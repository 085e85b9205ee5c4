"""What the page shows of the cluster is bounded, and what needs a look comes first."""

import msgspec

from api.web.live_document import MOST_LINKS, MOST_WORKERS, cluster_lines
from cluster.messages.ids import CellName, Pool, SloClass, WorkerId
from cluster.messages.operations import DistrustedPair, LinkDoubt, UnprovedLink, WorkerCondition
from cluster.messages.transport import LinkSpeed, WorkerTransport
from cluster.messages.views import CellState, ClusterView, Readiness, WorkerView
from tests.unit.statuses import a_scheduler_status, a_worker_status

READY = Readiness(1, 1, 1)
MOST_BYTES = 600_000
"""Bytes of the cluster's part of the document of any cluster. More makes each poll slower."""


def a_view(links: dict[WorkerId, LinkSpeed | None]) -> ClusterView:
    decode = WorkerView(
        worker=WorkerId("d0"),
        pool=Pool.DECODE,
        num_placed=0,
        max_requests=8,
        host="10.0.0.1",
        transport=WorkerTransport(),
        links=links,
    )
    return ClusterView(workers=[decode])


def test_pools_are_summed_and_workers_ordered_by_what_they_do() -> None:
    status = a_scheduler_status(
        a_worker_status("p0", num_placed=1, kv_usage=0.2, max_requests=8),
        a_worker_status("p1", num_placed=3, kv_usage=0.4, max_requests=8),
        a_worker_status("p2", condition=WorkerCondition.DRAINING, kv_usage=0.0, max_requests=8),
        a_worker_status("d0"),
        num_open=4,
        waiting={SloClass.BATCH: 2, SloClass.STANDARD: 1},
    )
    shown = cluster_lines([status], [], READY)
    prefill, decode = shown.pools
    assert (prefill.num_workers, prefill.num_not_ready, prefill.num_placed, prefill.max_requests) == (3, 1, 4, 24)
    assert (round(prefill.mean_kv_usage, 3), prefill.most_kv_usage, decode.most_kv_usage) == (0.2, 0.4, 0.1)
    assert [line.worker for line in shown.workers] == ["p2", "p1", "p0", "d0"]
    assert (shown.num_open, shown.num_waiting) == (4, 3)


def test_links_that_hand_nothing_over_come_first_and_then_the_slowest() -> None:
    speeds = a_view(
        {WorkerId("p0"): LinkSpeed(0.001, 9e9), WorkerId("p1"): LinkSpeed(0.002, 1e9), WorkerId("p2"): None}
    )
    status = a_scheduler_status(
        a_worker_status("d0", num_links=3),
        unproved=[UnprovedLink(prefill=WorkerId("p3"), decode=WorkerId("d0"), doubt=LinkDoubt.FAILED)],
        distrusted=[DistrustedPair(prefill=WorkerId("p0"), decode=WorkerId("d0"), num_strikes=2, barred_s=9.0)],
    )
    shown = cluster_lines([status], [], READY, speeds)
    assert [(line.prefill, line.doubt, line.bytes_per_s) for line in shown.links] == [
        ("p0", "handed over wrongly, barred for now", None),
        ("p3", "the last attempt failed", None),
        ("p2", "", None),
        ("p1", "", 1e9),
        ("p0", "", 9e9),
    ]
    assert (shown.num_links, shown.num_unproved, shown.num_distrusted) == (3, 1, 1)


def test_document_of_a_large_cluster_is_bounded() -> None:
    names = [f"{pool}-{number:016}" for pool in ("p", "d") for number in range(1500)]
    workers = [a_worker_status(name, kv_usage=1 / 3, report_age_s=2 / 3, hold_s=1 / 3) for name in names]
    unproved = [
        UnprovedLink(prefill=WorkerId(names[number]), decode=WorkerId(names[-1]), doubt=LinkDoubt.NEVER_TRIED)
        for number in range(200)
    ]
    shown = cluster_lines([a_scheduler_status(*workers, unproved=unproved, num_unproved=9000)], [], READY)
    assert (len(shown.workers), shown.num_workers) == (MOST_WORKERS, 3000)
    assert (len(shown.links), shown.num_unproved) == (MOST_LINKS, 9000)
    assert len(msgspec.json.encode(shown)) < MOST_BYTES


def test_cells_are_summed_and_those_that_are_away_are_named() -> None:
    states = {CellName("a"): CellState.OPEN, CellName("b"): CellState.AWAY}
    both = [
        a_scheduler_status(a_worker_status("p0"), num_open=1),
        a_scheduler_status(a_worker_status("d0"), num_open=2),
    ]
    shown = cluster_lines(both, [], Readiness(1, 1, 1, cells=states))
    assert (shown.num_open, shown.num_workers, shown.cells_away) == (3, 2, ["b"])

"""What the page shows of the cluster is bounded, and the busiest workers come first."""

import msgspec

from api.web.live_document import MOST_LINKS, MOST_WORKERS, cluster_lines
from cluster.messages.ids import CellName, Pool, WorkerId
from cluster.messages.transport import LinkSpeed, WorkerTransport
from cluster.messages.views import ClusterView, WorkerView

MOST_BYTES = 400_000
"""Bytes of the cluster's part of the document of any cluster. More makes each poll slower."""


def a_view(name: str, pool: Pool, links: dict[WorkerId, LinkSpeed | None] | None = None, placed: int = 0) -> WorkerView:
    return WorkerView(
        worker=WorkerId(name),
        pool=pool,
        num_placed=placed,
        max_requests=8,
        host="10.0.0.1",
        transport=WorkerTransport(),
        links=links or {},
    )


def test_pools_are_summed_and_workers_ordered_by_what_they_do() -> None:
    workers = [a_view("p0", Pool.PREFILL, placed=1), a_view("p1", Pool.PREFILL, placed=3), a_view("d0", Pool.DECODE)]
    shown = cluster_lines(ClusterView(workers=workers, num_open=4, num_waiting=2), [])
    prefill, decode = shown.pools
    assert (prefill.num_workers, prefill.num_placed, prefill.max_requests) == (2, 4, 16)
    assert (decode.num_workers, decode.mean_kv_usage) == (1, None)
    assert [line.worker for line in shown.workers] == ["p1", "p0", "d0"]
    assert (shown.num_open, shown.num_waiting) == (4, 2)


def test_links_are_counted_on_both_sides_and_the_slowest_come_first() -> None:
    fast, slow = LinkSpeed(0.001, 9e9), LinkSpeed(0.002, 1e9)
    links: dict[WorkerId, LinkSpeed | None] = {WorkerId("p0"): fast, WorkerId("p1"): slow, WorkerId("p2"): None}
    workers = [a_view(f"p{n}", Pool.PREFILL) for n in range(3)] + [a_view("d0", Pool.DECODE, links)]
    shown = cluster_lines(ClusterView(workers=workers), [])
    assert [(line.prefill, line.bytes_per_s) for line in shown.links] == [("p2", None), ("p1", 1e9), ("p0", 9e9)]
    assert {line.worker: line.num_links for line in shown.workers} == {"p0": 1, "p1": 1, "p2": 1, "d0": 3}


def test_document_of_a_large_cluster_is_bounded() -> None:
    prefills = [a_view(f"baton-prefill-{n:08}", Pool.PREFILL) for n in range(1500)]
    links: dict[WorkerId, LinkSpeed | None] = {
        view.worker: LinkSpeed(0.001, 1e9 + n) for n, view in enumerate(prefills)
    }
    decodes = [a_view(f"baton-decode-{n:08}", Pool.DECODE, links if n < 3 else {}) for n in range(1500)]
    shown = cluster_lines(ClusterView(workers=[*prefills, *decodes]), [])
    assert (len(shown.workers), shown.num_workers) == (MOST_WORKERS, 3000)
    assert (len(shown.links), shown.num_links) == (MOST_LINKS, 4500)
    assert len(msgspec.json.encode(shown)) < MOST_BYTES


def test_cells_that_are_away_are_named() -> None:
    shown = cluster_lines(ClusterView(workers=[], cells_away=[CellName("b")]), [])
    assert shown.cells_away == ["b"]

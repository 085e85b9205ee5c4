"""The document that the page polls: pools, workers, links and queue as the Scheduler knows them, and the latest
requests of one ingress replica. Its size is bounded, however large the cluster is. Pure.
"""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from api.web.recent_requests import RecentRequests
from cluster.messages.ids import CellName, Pool, WorkerId
from cluster.messages.views import ClusterView, QueuedRequest, WorkerView

MOST_WORKERS = 1024
"""Workers that have a line, those with the most to do first in each pool. More makes answers of large clusters longer;
fewer hides idle workers.
"""
MOST_LINKS = 40
"""Links that have a line, the slowest first. Their number is exact. More makes answers longer; fewer hides slow links.
"""


class WorkerLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    worker: WorkerId
    pool: Pool
    host: str
    condition: str = "ready"
    num_placed: int = 0
    """Open requests that placement has charged to the worker."""
    max_requests: int = 0
    num_running: int | None = None
    """Requests in the engine's batch. None if it is not known."""
    num_waiting: int | None = None
    kv_usage: float | None = None
    """Share of the KV blocks in use, in [0, 1]. None if it is not known."""
    report_age_s: float | None = None
    num_links: int = 0
    num_holds: int = 0
    """Ingress replicas that get no placement on the worker now."""
    cell: CellName | None = None


class PoolLine(msgspec.Struct, frozen=True, kw_only=True):
    pool: Pool
    num_workers: int
    num_not_ready: int
    num_placed: int
    max_requests: int
    mean_kv_usage: float | None
    most_kv_usage: float | None


class LinkLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    prefill: WorkerId
    decode: WorkerId
    latency_s: float | None = None
    """None if the speed of the link is not measured yet."""
    bytes_per_s: float | None = None


class ClusterLines(msgspec.Struct, frozen=True, kw_only=True):
    num_open: int
    num_waiting: int
    pools: list[PoolLine]
    workers: list[WorkerLine]
    num_workers: int
    links: list[LinkLine]
    num_links: int
    queue: list[QueuedRequest]
    cells_away: list[CellName]


class ClusterState(msgspec.Struct, frozen=True, kw_only=True):
    """What was last known of the cluster."""

    age_s: float | None
    """Seconds since a Scheduler has answered. None if none ever has."""
    error: str | None
    """Why it does not answer now. None if it does."""
    known: ClusterLines | None


class LiveDocument(msgspec.Struct, frozen=True, kw_only=True):
    form: int
    """The version of the form of this document. A page that expects another one says so."""
    number: int
    """The number of this document among those of the replica. An answer with the same number is the same document."""
    replica: str
    """The ingress replica, whose latest requests these are."""
    model: str
    at: float
    """Unix time at which the document was made."""
    every_s: float
    """Seconds after which there is a new one."""
    cluster: ClusterState
    requests: RecentRequests


FORM = 1
"""Raised by a change after which an older page would show something wrong."""


def cluster_lines(view: ClusterView, queue: Sequence[QueuedRequest]) -> ClusterLines:
    links_of: dict[WorkerId, int] = {}
    links = list[LinkLine]()
    for decode in view.workers:
        for prefill, speed in decode.links.items():
            links_of[prefill] = links_of.get(prefill, 0) + 1
            if speed is None:
                links.append(LinkLine(prefill=prefill, decode=decode.worker))
            else:
                links.append(
                    LinkLine(
                        prefill=prefill,
                        decode=decode.worker,
                        latency_s=speed.latency_s,
                        bytes_per_s=speed.bytes_per_s,
                    )
                )
    lines = [_worker_line(worker, links_of.get(worker.worker, 0) + len(worker.links)) for worker in view.workers]
    links.sort(key=lambda link: link.bytes_per_s or 0.0)
    return ClusterLines(
        num_open=view.num_open,
        num_waiting=view.num_waiting,
        pools=[_pool_line(pool, [line for line in lines if line.pool is pool]) for pool in Pool],
        workers=sorted(lines, key=_busyness)[:MOST_WORKERS],
        num_workers=len(lines),
        links=links[:MOST_LINKS],
        num_links=view.num_links,
        queue=list(queue),
        cells_away=[] if view.cells_away is UNSET else view.cells_away,
    )


def _worker_line(worker: WorkerView, num_links: int) -> WorkerLine:
    return WorkerLine(
        worker=worker.worker,
        pool=worker.pool,
        host=worker.host,
        num_placed=worker.num_placed,
        max_requests=worker.max_requests,
        num_links=num_links,
        cell=None if worker.cell is UNSET else worker.cell,
    )


def _pool_line(pool: Pool, lines: Sequence[WorkerLine]) -> PoolLine:
    usages = [line.kv_usage for line in lines if line.kv_usage is not None]
    return PoolLine(
        pool=pool,
        num_workers=len(lines),
        num_not_ready=sum(line.condition != "ready" for line in lines),
        num_placed=sum(line.num_placed for line in lines),
        max_requests=sum(line.max_requests for line in lines),
        mean_kv_usage=sum(usages) / len(usages) if usages else None,
        most_kv_usage=max(usages, default=None),
    )


def _busyness(line: WorkerLine) -> tuple[bool, float, int, str]:
    """Workers that get no requests first, then the busy ones."""
    return (line.condition == "ready", -(line.kv_usage or 0.0), -line.num_placed, line.worker)

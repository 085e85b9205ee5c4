"""The document that the page polls: pools, workers, links and queue as the Scheduler knows them, and the latest
requests of one ingress replica. Its size is bounded, however large the cluster is. Pure.
"""

from collections.abc import Sequence

import msgspec

from api.web.recent_requests import RecentRequests
from cluster.messages.ids import CellName, Pool, WorkerId
from cluster.messages.operations import SchedulerStatus, WorkerCondition, WorkerStatus
from cluster.messages.views import CellState, ClusterView, QueuedRequest, Readiness

MOST_WORKERS = 1024
"""Workers that have a line, those with the most to do first in each pool. More makes answers of large clusters longer;
fewer hides idle workers.
"""
MOST_LINKS = 40
"""Links that have a line: those that hand nothing over first, then the slowest. Their numbers are exact. More makes
answers longer; fewer hides slow links.
"""


class PoolLine(msgspec.Struct, frozen=True, kw_only=True):
    pool: Pool
    num_workers: int
    num_not_ready: int
    num_placed: int
    max_requests: int
    mean_kv_usage: float
    most_kv_usage: float


class LinkLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    prefill: WorkerId
    decode: WorkerId
    doubt: str = ""
    """Why the link hands nothing over, or is watched. Empty for one that is proved."""
    latency_s: float | None = None
    """None if the speed of the link is not known."""
    bytes_per_s: float | None = None


class ClusterLines(msgspec.Struct, frozen=True, kw_only=True):
    num_open: int
    num_waiting: int
    oldest_wait_s: float
    pools: list[PoolLine]
    workers: list[WorkerStatus]
    num_workers: int
    links: list[LinkLine]
    num_links: int
    """Proved links."""
    num_unproved: int
    num_distrusted: int
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


def cluster_lines(
    statuses: Sequence[SchedulerStatus],
    queue: Sequence[QueuedRequest],
    readiness: Readiness,
    view: ClusterView | None = None,
) -> ClusterLines:
    """`statuses`: of the Schedulers that answer. `view`: with the speed of each link; None for a large cluster."""
    workers = [worker for status in statuses for worker in status.workers]
    return ClusterLines(
        num_open=sum(status.num_open for status in statuses),
        num_waiting=sum(sum(status.waiting.values()) for status in statuses),
        oldest_wait_s=max((status.oldest_wait_s for status in statuses), default=0.0),
        pools=[_pool_line(pool, [worker for worker in workers if worker.pool is pool]) for pool in Pool],
        workers=sorted(workers, key=_busyness)[:MOST_WORKERS],
        num_workers=len(workers),
        links=[*_doubtful(statuses), *_proved(view)][:MOST_LINKS],
        num_links=sum(worker.num_links for worker in workers if worker.pool is Pool.DECODE),
        num_unproved=sum(status.num_unproved for status in statuses),
        num_distrusted=sum(len(status.distrusted) for status in statuses),
        queue=list(queue),
        cells_away=[cell for cell, state in (readiness.cells or {}).items() if state is CellState.AWAY],
    )


def _pool_line(pool: Pool, workers: Sequence[WorkerStatus]) -> PoolLine:
    usages = [worker.kv_usage for worker in workers]
    return PoolLine(
        pool=pool,
        num_workers=len(workers),
        num_not_ready=sum(worker.condition is not WorkerCondition.READY for worker in workers),
        num_placed=sum(worker.num_placed for worker in workers),
        max_requests=sum(worker.max_requests for worker in workers),
        mean_kv_usage=sum(usages) / len(usages) if usages else 0.0,
        most_kv_usage=max(usages, default=0.0),
    )


def _busyness(worker: WorkerStatus) -> tuple[bool, float, int, str]:
    """Workers that get no requests first, then the busy ones."""
    return (worker.condition is WorkerCondition.READY, -worker.kv_usage, -worker.num_placed, worker.worker)


def _doubtful(statuses: Sequence[SchedulerStatus]) -> list[LinkLine]:
    lines = list[LinkLine]()
    for status in statuses:
        for pair in status.distrusted:
            doubt = "handed over wrongly" + (", barred for now" if pair.barred_s > 0 else ", is verified")
            lines.append(LinkLine(prefill=pair.prefill, decode=pair.decode, doubt=doubt))
        for link in status.unproved:
            lines.append(LinkLine(prefill=link.prefill, decode=link.decode, doubt=link.doubt))
    return lines


def _proved(view: ClusterView | None) -> list[LinkLine]:
    """The slowest first."""
    lines = [
        LinkLine(
            prefill=prefill,
            decode=worker.worker,
            latency_s=speed.latency_s if speed else None,
            bytes_per_s=speed.bytes_per_s if speed else None,
        )
        for worker in (view.workers if view else ())
        for prefill, speed in worker.links.items()
    ]
    return sorted(lines, key=lambda line: line.bytes_per_s or 0.0)

"""Snapshots of the Scheduler's state, for readiness, metrics and debugging."""

import msgspec

from cluster.messages.ids import Pool, RequestId, SloClass, WorkerId
from cluster.messages.reports import WorkerLoad
from cluster.messages.transport import LinkSpeed, WorkerTransport


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    worker: WorkerId
    pool: Pool
    load: WorkerLoad
    num_placed: int
    """Open requests that placement has charged to it."""
    max_requests: int
    host: str
    """Address of its node."""
    transport: WorkerTransport
    links: dict[WorkerId, LinkSpeed | None]
    """Decode workers only: live prefill workers that it can pull from. None: not measured yet."""
    report_age_s: float


class QueuedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One that waits in the Scheduler for a placement."""

    request_id: RequestId
    slo_class: SloClass
    num_before: int
    """Requests that are served before it."""
    waited_s: float
    wait_s: float
    """That it is expected to wait yet."""
    gives_up_s: float
    """Until it is refused, if it still waits then."""


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of the Scheduler's state, for readiness, metrics and debugging."""

    workers: list[WorkerView]

    @property
    def num_prefill(self) -> int:
        return sum(w.pool is Pool.PREFILL for w in self.workers)

    @property
    def num_decode(self) -> int:
        return sum(w.pool is Pool.DECODE for w in self.workers)

    @property
    def num_links(self) -> int:
        """Proved prefill-decode pairs."""
        return sum(len(w.links) for w in self.workers)

    @property
    def is_ready(self) -> bool:
        """Both pools can serve: some prefill worker can hand over to some decode worker."""
        return self.num_links > 0

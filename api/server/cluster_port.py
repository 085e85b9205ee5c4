"""ClusterPort: what the HTTP routes see of the rest of the cluster."""

from typing import Protocol

from api.server.kept_receipts import KeptReceipt
from cluster.messages.operations import DrainAnswer, DrainAsk, SchedulerStatus
from cluster.messages.views import CellsView, ClusterView, QueuedRequest, Readiness


class ClusterPort(Protocol):
    async def readiness(self) -> Readiness:
        """Whether the cluster can serve. Raises ServingError while the Scheduler cannot be reached."""
        ...

    async def cells(self) -> CellsView:
        """All cells, also those whose Schedulers are away."""
        ...

    async def view(self) -> ClusterView:
        """The view of the workers, by the Scheduler or by those of all cells. Raises ServingError while no Scheduler
        can be reached.
        """
        ...

    async def queue(self) -> list[QueuedRequest]:
        """The requests that wait for a placement, in the order of service. Raises ServingError while the Scheduler
        cannot be reached.
        """
        ...

    async def statuses(self) -> list[SchedulerStatus]:
        """What the Schedulers of all cells know. Raises ServingError while none can be reached."""
        ...

    async def drain(self, ask: DrainAsk) -> DrainAnswer:
        """Raises NotFound for an unknown worker, Conflict for the last one of its pool, StateUnavailable if the drain
        cannot be stored, and ServingError while the Scheduler cannot be reached.
        """
        ...

    async def metrics_page(self) -> bytes:
        """Prometheus text with the metrics of every replica that answers in time."""
        ...

    async def receipts(self, name: str) -> list[KeptReceipt]:
        """The route receipts of the session or the HTTP request of this name, of every ingress replica that answers in
        time, the newest first.
        """
        ...

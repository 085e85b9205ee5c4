"""What the HTTP surface needs from the rest of the cluster."""

from typing import Protocol

from cluster.messages.views import ClusterView, QueuedRequest


class ClusterPort(Protocol):
    async def view(self) -> ClusterView:
        """Raises ServingError while the Scheduler is away."""
        ...

    async def queue(self) -> list[QueuedRequest]:
        """Who waits for a placement, in the order in which they are served. Raises ServingError."""
        ...

    async def metrics_page(self) -> bytes:
        """Prometheus text of every process that answers in time."""
        ...

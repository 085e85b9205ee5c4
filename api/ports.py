"""What the HTTP surface needs from the rest of the cluster."""

from typing import Protocol

from cluster.metrics import Scrape
from cluster.reports import ClusterView


class ClusterPort(Protocol):
    async def view(self) -> ClusterView:
        """Raises ServingError while the Scheduler is away."""
        ...

    async def scrape(self) -> list[Scrape]:
        """The metrics of every process that answers in time."""
        ...

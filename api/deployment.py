"""Ingress: the Serve deployment that runs the HTTP application.

What a replica consists of imports vLLM, which takes many seconds of CPU. The replica's own process does it, and not the
one that builds the Serve application.
"""

from collections.abc import Mapping, Sequence

from ray.serve.handle import DeploymentHandle

from api.server.kept_receipts import KeptReceipt
from cluster.config.application import AppConfig
from cluster.messages.ids import CellName
from cluster.metrics.page import Scrape
from cluster.observability.logging import set_up_logging
from cluster.serve_context import own_worker_id
from cluster.uncollected import uncollected


class Ingress:
    """One ingress replica."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: AppConfig, cells: Mapping[CellName, Sequence[DeploymentHandle]]
    ) -> None:
        """`cells`: the deployments of each cell."""
        set_up_logging(replica=own_worker_id())  # before libraries are imported that configure logging themselves
        with uncollected():
            from api.replica import IngressReplica
        replica = IngressReplica(config, cells)
        await replica.start()
        self._replica = replica

    async def check_health(self) -> None:
        """Raise RuntimeError if a listener has ended, so that Serve replaces the replica."""
        self._replica.check_health()

    async def scrape(self) -> Scrape:
        return self._replica.scrape()

    async def receipts_named(self, name: str) -> list[KeptReceipt]:
        """What this replica keeps of a session or an HTTP request. Another replica asks (RECEIPTS_NAMED)."""
        return self._replica.receipts_named(name)

    async def __del__(self) -> None:
        if "_replica" in self.__dict__:  # the attribute is absent if the replica did not start
            await self._replica.close()

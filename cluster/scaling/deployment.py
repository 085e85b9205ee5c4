"""PoolScaler: the Serve deployment that decides how large the pools are. There is one for each Scheduler, if the config
has the section `scaling`.
"""

import asyncio
import time
from collections.abc import Mapping

from cluster.clients.scheduler_client import SchedulerClient
from cluster.config.network import NetworkConfig
from cluster.config.scaling import ScalingConfig
from cluster.messages.ids import CellName, Pool
from cluster.metrics.page import Scrape, scrape
from cluster.observability.logging import set_up_logging
from cluster.scaling.autoscaler import Autoscaler
from cluster.scaling.pool_sizes import PoolSizes
from cluster.scaling.published_targets import Target, first_correction, publish
from cluster.scaling.scaling_loop import ScalingLoop
from cluster.scaling.serve_view import ScaledPool, ServeView
from cluster.serve_context import application, join_cluster, own_worker_id, scheduler_finder


class PoolScaler:
    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self,
        config: ScalingConfig,
        pools: Mapping[Pool, ScaledPool],
        network: NetworkConfig,
        cell: CellName | None = None,
    ) -> None:
        set_up_logging()
        join_cluster(network.tls)
        own, deployments = application(), [pool.deployment for pool in pools.values()]
        correction = await asyncio.to_thread(first_correction, own, deployments, time.time())
        autoscaler = Autoscaler(config, correction)

        async def publish_sizes(sizes: PoolSizes) -> None:
            now, learned = time.time(), autoscaler.policy.correction
            targets = {pools[pool].deployment: Target(sizes.of(pool), now, learned) for pool in Pool}
            await asyncio.to_thread(publish, own, targets)

        scheduler = SchedulerClient(scheduler_finder(cell))
        loop = ScalingLoop(autoscaler, scheduler, ServeView(own, pools), publish_sizes)
        self._task = asyncio.create_task(loop.run())

    async def check_health(self) -> None:
        """Raise if the loop has ended, so that Serve replaces this replica."""
        if self._task.done():
            raise RuntimeError("the loop that sizes the pools has ended") from self._task.exception()

    async def scrape(self) -> Scrape:
        return scrape("scaler", own_worker_id())

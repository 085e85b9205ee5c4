"""PoolScaler: the Serve deployment that decides how large the pools are. There is one for each Scheduler, if the config
has the section `scaling`.
"""

import asyncio
from collections.abc import Mapping

from ray import serve

from cluster import metrics
from cluster.clients.scheduler_client import SchedulerClient
from cluster.config.network import NetworkConfig
from cluster.config.scaling import ScalingConfig
from cluster.messages.ids import Pool
from cluster.observability.logging import set_up_logging
from cluster.scaling.autoscaler import Autoscaler
from cluster.scaling.pool_sizes import PoolSizes
from cluster.scaling.published_targets import publish
from cluster.scaling.scaling_loop import ScalingLoop
from cluster.scaling.serve_view import ServeView
from cluster.serve_context import join_cluster, own_worker_id, scheduler_finder


class PoolScaler:
    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self,
        config: ScalingConfig,
        network: NetworkConfig,
        deployments: Mapping[Pool, str],
        selectors: Mapping[Pool, Mapping[str, str]],
    ) -> None:
        """`deployments`: the names of the pools' deployments. `selectors`: the labels that their nodes must have."""
        set_up_logging()
        join_cluster(network.tls)
        application = str(serve.get_replica_context().app_name)

        async def publish_sizes(sizes: PoolSizes) -> None:
            await asyncio.to_thread(publish, application, {deployments[pool]: sizes.of(pool) for pool in Pool})

        loop = ScalingLoop(
            Autoscaler(config),
            SchedulerClient(scheduler_finder()),
            ServeView(application, deployments, selectors),
            publish_sizes,
        )
        self._task = asyncio.create_task(loop.run())

    async def check_health(self) -> None:
        """Raise if the loop has ended, so that Serve replaces this replica."""
        if self._task.done():
            raise RuntimeError("the loop that sizes the pools has ended") from self._task.exception()

    async def scrape(self) -> metrics.Scrape:
        return metrics.scrape("scaler", own_worker_id())

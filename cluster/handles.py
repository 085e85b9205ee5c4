"""What Ray and Serve tell a process of the cluster: who it is, where the Scheduler is, and everybody's metrics."""

import asyncio
import logging

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.util import get_node_ip_address

from cluster.channel import ConnectionLost
from cluster.metrics import Scrape
from cluster.peers import SchedulerPeer
from cluster.types import Address, ClusterView, WorkerId

logger = logging.getLogger("baton.handles")

_SCRAPE_TIMEOUT_S = 5.0


class ClusterHandle:
    """The whole application, as an ingress replica sees it."""

    def __init__(self, scheduler: SchedulerPeer, deployments: list[DeploymentHandle]) -> None:
        self._scheduler = scheduler
        self._deployments = deployments

    async def view(self) -> ClusterView:
        return await self._scheduler.view()

    async def scrape(self) -> list[Scrape]:
        """The metrics of every deployment whose replicas answer in time."""
        own = serve.get_replica_context()
        ingress = serve.get_deployment_handle(own.deployment, app_name=own.app_name)
        answers = await asyncio.gather(*(_scrape_all(handle) for handle in (ingress, *self._deployments)))
        return [scrape for answer in answers for scrape in answer]


async def scheduler_address(scheduler: DeploymentHandle) -> Address:
    """Raises ConnectionLost while there is none."""
    try:
        return await scheduler.address.remote()
    except (RayError, RayServeException) as error:
        raise ConnectionLost(f"there is no Scheduler: {type(error).__name__}") from error


def own_worker_id() -> WorkerId:
    """The id of the Serve replica that this process is."""
    return WorkerId(serve.get_replica_context().replica_id.unique_id)


def own_rank() -> int:
    """This replica's index among the replicas of its deployment."""
    return int(serve.get_replica_context().rank.rank)


def own_node_ip() -> str:
    return str(get_node_ip_address())


async def _scrape_all(handle: DeploymentHandle) -> list[Scrape]:
    try:
        answers = await handle.broadcast("scrape").results_async(timeout_s=_SCRAPE_TIMEOUT_S, return_exceptions=True)
    except (TimeoutError, RayError, RayServeException) as error:
        logger.warning("no metrics of %s: %s", handle.deployment_name, type(error).__name__)
        return []
    return [answer for answer in answers if isinstance(answer, Scrape)]

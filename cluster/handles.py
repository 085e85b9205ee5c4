"""What Ray and Serve tell a process of the cluster: who it is, where the Scheduler is, and everybody's metrics."""

import asyncio
import logging
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.util import get_node_ip_address

from cluster.channel import ConnectionLost
from cluster.metrics import Scrape
from cluster.peers import SchedulerPeer
from cluster.reports import ClusterView, QueuedRequest
from cluster.scheduling import Scheduling
from cluster.types import Address, WorkerId

logger = logging.getLogger("baton.handles")

_BROADCAST_TIMEOUT_S = 5.0


class ClusterHandle:
    """The whole application, as an ingress replica sees it.

    To be made while the replica starts: what makes a handle asks Serve's controller and the GCS, and holds up the event
    loop until they answer. A handle that is made broadcasts without either.
    """

    def __init__(self, scheduling: Scheduling, scheduler: SchedulerPeer, deployments: list[DeploymentHandle]) -> None:
        self._scheduling = scheduling
        self._scheduler = scheduler
        own = serve.get_replica_context()
        ingress = serve.get_deployment_handle(own.deployment, app_name=own.app_name)
        self._deployments = [handle.options() for handle in (ingress, *deployments)]  # which connects it

    async def view(self) -> ClusterView:
        return await self._scheduling.view()

    async def queue(self) -> list[QueuedRequest]:
        return await self._scheduler.queue()

    async def scrape(self) -> list[Scrape]:
        """The metrics of every deployment whose replicas answer in time."""
        answers = await asyncio.gather(*(_scrape_all(handle) for handle in self._deployments))
        return [scrape for answer in answers for scrape in answer]


async def scheduler_address(scheduler: DeploymentHandle) -> Address:
    """Raises ConnectionLost while there is none. Asked by broadcast: a call would have Serve probe the replica first,
    with a deadline that a busy machine misses.
    """
    for answer in await _broadcast(scheduler, "address"):
        if isinstance(answer, Address):
            return answer
    raise ConnectionLost("there is no Scheduler")


def own_worker_id() -> WorkerId:
    """The id of the Serve replica that this process is."""
    return WorkerId(serve.get_replica_context().replica_id.unique_id)


def own_rank() -> int:
    """This replica's index among the replicas of its deployment."""
    return int(serve.get_replica_context().rank.rank)


def own_node_ip() -> str:
    return str(get_node_ip_address())


async def _scrape_all(handle: DeploymentHandle) -> list[Scrape]:
    answers = await _broadcast(handle, "scrape")
    if not all(isinstance(answer, Scrape) for answer in answers):
        missing = [type(answer).__name__ for answer in answers if not isinstance(answer, Scrape)]
        logger.warning("no metrics of %d replicas of %s: %s", len(missing), handle.deployment_name, missing)
    return [answer for answer in answers if isinstance(answer, Scrape)]


async def _broadcast(handle: DeploymentHandle, method: str) -> list[Any]:
    """What each replica of a deployment answers, errors included; empty when there is none."""
    try:
        return list(
            await handle.broadcast(method).results_async(timeout_s=_BROADCAST_TIMEOUT_S, return_exceptions=True)
        )
    except (TimeoutError, RayError, RayServeException):
        return []

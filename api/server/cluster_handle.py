"""The whole application, as an ingress replica sees it: the Scheduler's views, and the metrics of all replicas."""

import asyncio
import logging
from collections.abc import Sequence

from cluster.clients.scheduler_client import SchedulerClient
from cluster.messages.reports import REPORT_INTERVAL_S
from cluster.messages.views import ClusterView, QueuedRequest, Readiness
from cluster.metrics import Scrape, render
from cluster.rpc.shared_answer import SharedAnswer
from cluster.serve_context import Deployment, broadcast, connected_handles
from router.session.scheduler_failover import SchedulerFailover

logger = logging.getLogger("baton.handles")


class ClusterHandle:
    """The implementation of ClusterPort (api/server/cluster_port.py) by calls of the Scheduler and of all replicas."""

    def __init__(
        self,
        scheduling: SchedulerFailover,
        scheduler: SchedulerClient,
        deployments: list[Deployment],
        max_age_s: float,
    ) -> None:
        """Must run while the replica starts (`connected_handles`). `max_age_s`: age up to which a page of metrics, the
        links and the queue are given again: each costs other processes time, however many ask for it.
        """
        self._deployments = connected_handles(deployments)
        self._readiness = SharedAnswer(scheduling.readiness, REPORT_INTERVAL_S)
        self._view = SharedAnswer(scheduler.view, max_age_s)
        self._queue = SharedAnswer(scheduler.queue, max_age_s)
        self._metrics_page = SharedAnswer(lambda: metrics_page_of(self._deployments), max_age_s)

    async def readiness(self) -> Readiness:
        return await self._readiness.get()

    async def view(self) -> ClusterView:
        return await self._view.get()

    async def queue(self) -> list[QueuedRequest]:
        return await self._queue.get()

    async def metrics_page(self) -> bytes:
        return await self._metrics_page.get()


async def metrics_page_of(deployments: Sequence[Deployment]) -> bytes:
    """Prometheus text: the metrics of every replica that answers in time, and the number of replicas that do not."""
    answers = await asyncio.gather(*(broadcast(handle, "scrape") for handle in deployments))
    num_missing = {}
    for handle, replicas in zip(deployments, answers, strict=True):
        missing = [repr(answer) for answer in replicas if not isinstance(answer, Scrape)]
        if missing:
            logger.warning("%d replicas of %s gave no metrics: %s", len(missing), handle.deployment_name, missing)
        num_missing[handle.deployment_name] = len(missing)
    scrapes = [answer for replicas in answers for answer in replicas if isinstance(answer, Scrape)]
    return await asyncio.to_thread(render, scrapes, num_missing)

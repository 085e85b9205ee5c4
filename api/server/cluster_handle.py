"""The whole application, as an ingress replica sees it: the Scheduler's views, and everybody's metrics."""

import asyncio
import logging
from collections.abc import Sequence

from cluster.clients.scheduler_client import SchedulerClient
from cluster.messages.views import ClusterView, QueuedRequest
from cluster.metrics import Scrape, render
from cluster.rpc.shared_answer import SharedAnswer
from cluster.serve_context import Deployment, broadcast, connected_handles
from router.session.scheduler_failover import SchedulerFailover

logger = logging.getLogger("baton.handles")
_VIEW_MAX_AGE_S = 0.25
"""How old a view of the cluster or of the queue may be that is given to clients, in seconds. As long as workers take
between two reports: longer shows what is no more, shorter lets who asks all the time cost the Scheduler more.
"""


class ClusterHandle:
    """The whole application, as an ingress replica sees it."""

    def __init__(
        self,
        scheduling: SchedulerFailover,
        scheduler: SchedulerClient,
        deployments: list[Deployment],
        metrics_max_age_s: float,
    ) -> None:
        """To be made while the replica starts (`connected_handles`)."""
        self._deployments = connected_handles(deployments)
        self._view = SharedAnswer(scheduling.view, _VIEW_MAX_AGE_S)
        self._queue = SharedAnswer(scheduler.queue, _VIEW_MAX_AGE_S)
        self._metrics_page = SharedAnswer(lambda: metrics_page_of(self._deployments), metrics_max_age_s)

    async def view(self) -> ClusterView:
        return await self._view.get()

    async def queue(self) -> list[QueuedRequest]:
        return await self._queue.get()

    async def metrics_page(self) -> bytes:
        return await self._metrics_page.get()


async def metrics_page_of(deployments: Sequence[Deployment]) -> bytes:
    """The metrics of every replica that answers in time, and of how many there are none."""
    answers = await asyncio.gather(*(broadcast(handle, "scrape") for handle in deployments))
    num_missing = {}
    for handle, replicas in zip(deployments, answers, strict=True):
        missing = [repr(answer) for answer in replicas if not isinstance(answer, Scrape)]
        if missing:
            logger.warning("no metrics of %d replicas of %s: %s", len(missing), handle.deployment_name, missing)
        num_missing[handle.deployment_name] = len(missing)
    scrapes = [answer for replicas in answers for answer in replicas if isinstance(answer, Scrape)]
    return await asyncio.to_thread(render, scrapes, num_missing)

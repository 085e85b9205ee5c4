"""Scheduler: RouterState behind Serve calls. Holds no policy; the clock is the event loop's."""

import asyncio

from cluster import metrics
from cluster.handles import own_worker_id
from cluster.types import (
    ClusterView,
    Placement,
    PlacementRequest,
    Rejection,
    ReportReply,
    RequestClosed,
    WorkerLost,
    WorkerReport,
)
from router.state import RouterState


class Scheduler:
    def __init__(self) -> None:
        self._state = RouterState()

    async def place(self, request: PlacementRequest) -> Placement | Rejection:
        return self._state.place(request, _now())

    async def tell(self, event: RequestClosed | WorkerLost) -> None:
        self._state.handle(event, _now())

    async def report(self, report: WorkerReport) -> ReportReply:
        self._state.handle(report, _now())
        return ReportReply(prefill_workers=self._state.prefill_workers(_now()))

    async def view(self) -> ClusterView:
        return self._state.view(_now())

    async def scrape(self) -> metrics.Scrape:
        view = self._state.view(_now())
        metrics.WORKERS.labels("prefill").set(view.num_prefill)
        metrics.WORKERS.labels("decode").set(view.num_decode)
        metrics.LINKS.set(view.num_links)
        return metrics.scrape("scheduler", own_worker_id())


def _now() -> float:
    return asyncio.get_running_loop().time()

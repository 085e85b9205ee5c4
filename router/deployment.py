"""Scheduler: RouterState behind the cluster's messages. Holds no policy; the clock is the event loop's."""

import asyncio

from cluster import metrics
from cluster.channel import Connection, Listener, Service
from cluster.handles import own_node_ip, own_worker_id
from cluster.protocol import KV_EVENTS, LOCATE, PLACE, REPORT, TELL, VIEW
from cluster.types import (
    Address,
    ClusterView,
    Placement,
    PlacementRequest,
    Rejection,
    ReportReply,
    SchedulerEvent,
    WorkerId,
    WorkerReport,
)
from router.state import RouterState


class Scheduler:
    async def __init__(self) -> None:  # type: ignore[misc]  # Serve awaits it
        self._state = RouterState()
        service = Service()
        service.on_call_of(PLACE, self._place)
        service.when_closed(self._state.asker_gone)
        service.on_call(TELL, self._tell)
        service.on_call(REPORT, self._report)
        service.on_post(KV_EVENTS, lambda _, events: self._state.handle_kv_events(events, _now()))
        service.on_call(VIEW, self._view)
        service.on_call(LOCATE, self._locate)
        self._listener = await Listener.start(own_node_ip(), service)

    async def address(self) -> Address:
        """Where the other processes talk to this one."""
        return self._listener.address

    async def scrape(self) -> metrics.Scrape:
        view = self._state.view(_now())
        metrics.WORKERS.labels("prefill").set(view.num_prefill)
        metrics.WORKERS.labels("decode").set(view.num_decode)
        metrics.LINKS.set(view.num_links)
        metrics.PLACED.clear()  # workers that are gone
        for worker in view.workers:
            metrics.PLACED.labels(worker.pool, worker.worker).set(worker.num_placed)
        metrics.set_link_speeds(view)
        metrics.INDEX_BLOCKS.set(self._state.index.num_blocks)
        metrics.INDEX_EXACT.set(sum(self._state.index.is_exact(worker.worker) for worker in view.workers))
        return metrics.scrape("scheduler", own_worker_id())

    async def _place(self, connection: Connection, request: PlacementRequest) -> Placement | Rejection:
        return self._state.place(request, _now(), connection)

    async def _tell(self, event: SchedulerEvent) -> None:
        self._state.handle(event, _now())

    async def _report(self, report: WorkerReport) -> ReportReply:
        self._state.handle(report, _now())
        return ReportReply(
            prefill_workers=self._state.prefill_workers(_now()),
            wants_kv_snapshot=self._state.wants_kv_snapshot(report),
        )

    async def _view(self, _: None) -> ClusterView:
        return self._state.view(_now())

    async def _locate(self, worker: WorkerId) -> Address | None:
        return self._state.address_of(worker)


def _now() -> float:
    return asyncio.get_running_loop().time()

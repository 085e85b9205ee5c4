"""Scheduler: RouterState behind the cluster's messages. Holds no policy; the clock is the event loop's."""

import asyncio
import logging

from cluster import compiled, metrics
from cluster.channel import Connection, Listener, Service
from cluster.handles import own_node_ip, own_worker_id
from cluster.observability.logging import set_up_logging
from cluster.protocol import KV_EVENTS, LOCATE, NOTE, PLACE, QUEUE, REPORT, TELL, VIEW
from cluster.reports import (
    ClusterView,
    KvEvents,
    QueuedRequest,
    ReportReply,
    WorkerReport,
)
from cluster.slo import SloConfig
from cluster.types import (
    Address,
    Placement,
    PlacementRequest,
    Rejection,
    SchedulerEvent,
    WorkerId,
)
from router.desk import PlacementDesk
from router.latency import LatencyModels
from router.state import RouterState

logger = logging.getLogger("baton.scheduler")


class Scheduler:
    async def __init__(self, slo: SloConfig) -> None:  # type: ignore[misc]  # Serve awaits it
        set_up_logging()
        if not compiled.is_in_use():
            logger.warning("placements are decided by the sources: what `baton compile` makes is several times as fast")
        self._desk = PlacementDesk(RouterState(slo))
        service = Service()
        service.on_call_of(PLACE, self._place)
        service.when_closed(self._desk.asker_gone)
        service.on_call(TELL, self._tell)
        service.on_post(NOTE, self._note)
        service.on_call(REPORT, self._report)
        service.on_post(KV_EVENTS, self._kv_events)
        service.on_call(VIEW, self._view)
        service.on_call(QUEUE, self._queue)
        service.on_call(LOCATE, self._locate)
        self._listener = await Listener.start(own_node_ip(), service)

    async def address(self) -> Address:
        """Where the other processes talk to this one."""
        return self._listener.address

    async def scrape(self) -> metrics.Scrape:
        view = self._desk.state.view(_now())
        metrics.WORKERS.labels("prefill").set(view.num_prefill)
        metrics.WORKERS.labels("decode").set(view.num_decode)
        metrics.LINKS.set(view.num_links)
        metrics.PLACED.clear()  # workers that are gone
        for worker in view.workers:
            metrics.PLACED.labels(worker.pool, worker.worker).set(worker.num_placed)
        metrics.set_link_speeds(view)
        metrics.INDEX_BLOCKS.set(self._desk.state.index.num_blocks)
        metrics.INDEX_EXACT.set(sum(self._desk.state.index.is_exact(worker.worker) for worker in view.workers))
        metrics.QUEUE.set(self._desk.state.num_waiting)
        _export_errors(self._desk.state.models)
        return metrics.scrape("scheduler", own_worker_id())

    async def _place(self, connection: Connection, request: PlacementRequest) -> Placement | Rejection:
        asked_at = _now()
        answer = await self._desk.place(request, connection)
        metrics.PLACEMENT.observe(_now() - asked_at)
        metrics.count_placement(answer)
        return answer

    async def _tell(self, event: SchedulerEvent) -> None:
        self._desk.tell(event)

    def _note(self, _: Connection, event: SchedulerEvent) -> None:
        self._desk.tell(event)

    def _kv_events(self, _: Connection, events: KvEvents) -> None:
        self._desk.kv_events(events)  # the answer to the worker's next report asks for what was missed

    async def _report(self, report: WorkerReport) -> ReportReply:
        return self._desk.report(report)

    async def _view(self, _: None) -> ClusterView:
        return self._desk.state.view(_now())

    async def _queue(self, _: None) -> list[QueuedRequest]:
        return self._desk.state.queued(_now())

    async def _locate(self, worker: WorkerId) -> Address | None:
        return self._desk.state.address_of(worker)


def _export_errors(models: LatencyModels) -> None:
    for kind, steps in models.errors().items():
        for step, error in (("prefill", steps.prefill), ("decode", steps.decode)):
            if error is not None:
                metrics.STEP_ERROR.labels(kind, step).set(error)
    for path, seen in models.bias.errors().items():
        for figure, error in (("ttft", seen.ttft), ("tpot", seen.tpot)):
            if error is not None:
                metrics.REQUEST_ERROR.labels(path, figure).set(error)


def _now() -> float:
    return asyncio.get_running_loop().time()

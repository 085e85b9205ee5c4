"""Scheduler: the Serve deployment of RouterState, behind the cluster's messages."""

import asyncio
import logging
from heapq import nlargest

from cluster import compiled
from cluster.config.network import NetworkConfig
from cluster.config.scheduler import SchedulerConfig
from cluster.event_loop import watch_event_loop
from cluster.messages.ids import CellName
from cluster.metrics.handoffs import TOLERANCE, set_links
from cluster.metrics.page import Scrape, scrape
from cluster.metrics.scheduler import (
    HOLDS,
    INDEX_BLOCKS,
    INDEX_EXACT,
    KV_USAGE,
    MAX_HOLDS,
    PLACED,
    QUEUE,
    REPORT_AGE,
    REQUEST_ERROR,
    RUNNING,
    STEP_ERROR,
    WAITING,
    WORKERS,
)
from cluster.observability.logging import set_up_logging
from cluster.rpc.listener import Listener
from cluster.serve_context import (
    join_cluster,
    own_interface_of,
    own_node,
    own_worker_id,
    scheduler_registry,
    worker_drains,
)
from cluster.slo import SloConfig
from router.drain_keeper import DrainKeeper
from router.epoch_watch import EpochWatch
from router.garbage import collect_rarely
from router.prediction.learned_latency import LatencyModels
from router.recording.log_files import start_log
from router.recording.recorded_state import RecordedState
from router.scheduler_service import SchedulerService
from router.state import RouterState

logger = logging.getLogger("baton.scheduler")


class Scheduler:
    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, slo: SloConfig, config: SchedulerConfig, network: NetworkConfig, cell: CellName | None = None
    ) -> None:
        set_up_logging(replica=own_worker_id())
        if not compiled.is_in_use():
            logger.warning(
                "the Scheduler runs interpreted: the code that `baton compile` makes is several times as fast"
            )
        join_cluster(network.tls)
        self._state = RouterState(slo, max_indexed_blocks=config.max_indexed_blocks)
        self._log = start_log(config, slo, cell)
        state = RecordedState(self._state, self._log) if self._log is not None else self._state
        service = SchedulerService(state, lambda epoch: self._epoch_watch.heard_of(epoch), lambda: self._drains).service
        self._listener = await Listener.start(own_interface_of(network.host).host, service)
        collect_rarely()
        registry = scheduler_registry(cell)
        record = registry.claim(self._listener.address, own_node())
        if self._log is not None:
            self._log.epoch = record.epoch
        self._drains = DrainKeeper(state, worker_drains(record.epoch, cell), registry)
        self._state.status.begin(record.epoch, asyncio.get_running_loop().time())
        self._closing: asyncio.Task[None] | None = None
        self._epoch_watch = EpochWatch(registry, record, self._stop)
        self._loop_watch = asyncio.create_task(watch_event_loop())

    async def check_health(self) -> None:
        """Raise RuntimeError if a newer Scheduler has taken over, so that Serve ends this one."""
        if self._epoch_watch.is_replaced:
            raise RuntimeError("a newer Scheduler has taken over")

    def _stop(self) -> None:
        """Close all connections: every peer then looks for the newest Scheduler."""
        self._drains.close()
        self._closing = asyncio.create_task(self._listener.close())

    def __del__(self) -> None:
        """Serve calls it as the replica leaves: it asks for newer Schedulers no more, and writes what the log has."""
        if (loop_watch := getattr(self, "_loop_watch", None)) is not None:
            loop_watch.cancel()
        if (watch := getattr(self, "_epoch_watch", None)) is not None:
            watch.close()
        if (log := getattr(self, "_log", None)) is not None:
            log.close()

    async def scrape(self) -> Scrape:
        export(self._state, asyncio.get_running_loop().time())
        return scrape("scheduler", own_worker_id())


def export(state: RouterState, now: float) -> None:
    """Set the metrics that show what the Scheduler knows now. What happens is counted where it happens."""
    view = state.view(now)
    WORKERS.labels("prefill").set(view.num_prefill)
    WORKERS.labels("decode").set(view.num_decode)
    PLACED.clear()  # drops workers that are gone
    for worker in view.workers:
        PLACED.labels(worker.pool, worker.worker).set(worker.num_placed)
    set_links(view)
    _export_reports(state, now)
    HOLDS.clear()  # drops holds that are over
    for held in nlargest(MAX_HOLDS, state.suspects.held(now), key=lambda held: held.seconds):
        HOLDS.labels(held.ingress, held.worker).set(held.seconds)
    INDEX_BLOCKS.set(state.index.num_blocks)
    INDEX_EXACT.set(sum(state.index.is_exact(worker.worker) for worker in view.workers))
    for slo_class, number in state.queue.num_by_class().items():
        QUEUE.labels(slo_class).set(number)
    TOLERANCE.clear()
    for (prefill, decode), tolerance in state.trust.tolerances().items():
        TOLERANCE.labels(prefill, decode).set(tolerance)
    _export_errors(state.models)


def _export_reports(state: RouterState, now: float) -> None:
    """What workers have reported last. Workers that are forgotten disappear."""
    for gauge in (REPORT_AGE, KV_USAGE, RUNNING, WAITING):
        gauge.clear()
    for worker in state.by_worker.values():
        labels, load = (worker.pool, worker.worker), worker.report.load
        REPORT_AGE.labels(*labels).set(now - worker.reported_at)
        KV_USAGE.labels(*labels).set(load.kv_cache_usage)
        RUNNING.labels(*labels).set(load.num_running)
        WAITING.labels(*labels).set(load.num_waiting)


def _export_errors(models: LatencyModels) -> None:
    STEP_ERROR.clear()  # drops kinds of engines that are gone
    for kind, steps in models.errors().items():
        for step, error in (("prefill", steps.prefill), ("decode", steps.decode)):
            if error is not None:
                STEP_ERROR.labels(kind, step).set(error)
    for path, seen in models.bias.errors().items():
        for figure, error in (("ttft", seen.ttft), ("tpot", seen.tpot)):
            if error is not None:
                REQUEST_ERROR.labels(path, figure).set(error)

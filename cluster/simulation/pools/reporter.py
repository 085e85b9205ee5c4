"""Sends the reports and KV events of simulated workers to the Scheduler, as late and as wrong as the setting says."""

import asyncio
from typing import Protocol, TypeVar

import msgspec

from cluster.engine.port import ReportedEngine
from cluster.messages.ids import Address, IngressId, Pool, WorkerId
from cluster.messages.kv_events import KvChange, KvEvents
from cluster.messages.placement import Placement, PlacementRequest, Rejection
from cluster.messages.reports import LinkOrder, ReportReply, StepSample, TransferSample, WorkerReport
from cluster.messages.scheduler_events import SchedulerEvent
from cluster.messages.transport import LinkSpeed
from cluster.simulation.pools.link_model import LinkModel
from cluster.simulation.pools.pool_setting import ClusterSetting
from cluster.simulation.pools.simulated_worker import SimulatedWorker

Sample = TypeVar("Sample", StepSample, TransferSample)

NOWHERE = Address("simulated", 0, "")
"""The address in all reports. Simulated workers have no listener."""
MAX_TRANSFERS = 8
"""Transfers in one report. Fewer makes the Scheduler learn more slowly; more makes it learn faster than from real
workers.
"""
LONGEST_RUN_S = 1e5
"""Virtual seconds after which a run fails: it waits for something that never comes, and the reports keep it from
ending. Fewer fails long runs; more takes longer to fail.
"""


class SchedulerUnderTest(Protocol):
    """The Scheduler (router/pending_placements.py)."""

    async def place(self, request: PlacementRequest, ingress: IngressId | None = None, /) -> Placement | Rejection: ...

    def tell(self, event: SchedulerEvent, /) -> None: ...

    def report(self, report: WorkerReport, /) -> ReportReply: ...

    def kv_events(self, events: KvEvents, /) -> bool:
        """True if the Scheduler wants a snapshot of what the worker caches."""
        ...


class _ReportedWorker:
    """What will be reported of one worker."""

    __slots__ = ("is_sending", "links", "num_kv_events", "probing", "timer", "transfers", "wants_snapshot", "worker")

    def __init__(self, worker: SimulatedWorker) -> None:
        self.worker = worker
        self.timer: asyncio.TimerHandle | None = None
        self.transfers: list[TransferSample] = []
        self.links: dict[WorkerId, LinkSpeed | None] = {}
        self.probing: WorkerId | None = None
        """The prefill worker to which a link is proved or measured now."""
        self.num_kv_events = 0
        self.is_sending = False
        """True if KV events will be sent soon."""
        self.wants_snapshot = True


class Reporter:
    """Sends reports and KV events of all live workers."""

    def __init__(self, setting: ClusterSetting, scheduler: SchedulerUnderTest, links: LinkModel) -> None:
        self._setting, self._reporting = setting, setting.reporting
        self._scheduler = scheduler
        self._links = links
        self._loop = asyncio.get_running_loop()
        self._reported: dict[SimulatedWorker, _ReportedWorker] = {}

    def begin(self, worker: SimulatedWorker) -> None:
        entry = self._reported[worker] = _ReportedWorker(worker)
        self._join_up()
        if self._reporting.kv_events_s is not None:
            self._send_kv_events(entry)
        number = self._setting.prefill.number + self._setting.decode.number
        shift_s = self._reporting.interval_s * (len(self._reported) - 1) / max(number, 1)
        self._report(entry, self._reporting.interval_s + shift_s)

    def end(self, worker: SimulatedWorker) -> None:
        entry = self._reported.pop(worker)
        if entry.timer is not None:
            entry.timer.cancel()
        self._join_up()

    def note_transfer(self, worker: SimulatedWorker, sample: TransferSample) -> None:
        entry = self._reported.get(worker)
        if entry is not None and len(entry.transfers) < MAX_TRANSFERS:
            entry.transfers.append(self._scaled(sample))

    def report_changes(self, worker: SimulatedWorker) -> None:
        """Report soon that the cache of a worker has changed."""
        entry = self._reported.get(worker)
        if entry is None or entry.is_sending:
            return
        if self._reporting.kv_events_s is None:
            worker.engine.cache.changes()
            return
        entry.is_sending = True
        self._loop.call_later(self._reporting.kv_events_s, self._send_kv_events, entry)

    def _join_up(self) -> None:
        """Give every decode worker a link from every prefill worker, unless links have to be proved."""
        if self._setting.linking.proof_s is not None:
            return
        prefills = [worker for worker in self._reported if worker.pool is Pool.PREFILL]
        for worker, entry in self._reported.items():
            if worker.pool is Pool.DECODE:
                entry.links = {prefill.id: self._links.speed(prefill.place, worker.place) for prefill in prefills}

    def _send_kv_events(self, entry: _ReportedWorker) -> None:
        entry.is_sending = False
        if entry.worker not in self._reported:
            return
        entry.num_kv_events += 1
        is_snapshot, entry.wants_snapshot = entry.wants_snapshot, False
        cache = entry.worker.engine.cache
        changes: list[KvChange] = cache.snapshot() if is_snapshot else cache.changes()
        events = KvEvents(entry.worker.id, entry.num_kv_events, is_snapshot, True, changes)
        entry.wants_snapshot = bool(self._scheduler.kv_events(events))

    def _report(self, entry: _ReportedWorker, next_after_s: float | None = None) -> None:
        now = self._loop.time()
        if now > LONGEST_RUN_S:
            raise RuntimeError(f"requests are still open after {now:.0f} virtual seconds")
        worker, scale = entry.worker, self._reporting.load_scale
        engine: ReportedEngine = worker
        load = engine.load()
        if scale != 1:
            load = msgspec.structs.replace(
                load,
                num_running=round(load.num_running * scale),
                num_waiting=round(load.num_waiting * scale),
                kv_cache_usage=min(1.0, load.kv_cache_usage * scale),
            )
        report = WorkerReport(
            worker=worker.id,
            pool=worker.pool,
            address=NOWHERE,
            load=load,
            max_requests=worker.setting.max_requests,
            shape=engine.shape,
            steps=[self._scaled(step) for step in engine.take_samples()],
            transfers=entry.transfers,
            kv_events_through=None if self._reporting.kv_events_s is None else entry.num_kv_events,
            links=entry.links,
            probing=entry.probing,
        )
        entry.transfers = []
        # The first report of a worker is its start, and is not delayed.
        if self._reporting.delay_s and entry.timer is not None:
            self._loop.call_later(self._reporting.delay_s, self._deliver, entry, report)
        else:
            self._deliver(entry, report)
        entry.timer = self._loop.call_later(next_after_s or self._reporting.interval_s, self._report, entry)

    def _deliver(self, entry: _ReportedWorker, report: WorkerReport) -> None:
        reply = self._scheduler.report(report)
        self._obey(entry, reply)
        if reply.wants_kv_snapshot and entry.worker in self._reported:
            entry.wants_snapshot = True
            self.report_changes(entry.worker)

    def _obey(self, entry: _ReportedWorker, reply: ReportReply) -> None:
        """Prove and measure links as a decode worker does (decode/proven_links.py)."""
        if reply.gone:
            entry.links = {prefill: speed for prefill, speed in entry.links.items() if prefill not in reply.gone}
        order, linking = reply.link, self._setting.linking
        if order is None or entry.probing is not None or linking.proof_s is None:
            return
        entry.probing = order.prefill
        seconds = 0.0 if order.prefill in entry.links else linking.proof_s
        self._loop.call_later(seconds, self._proved, entry, order)

    def _proved(self, entry: _ReportedWorker, order: LinkOrder) -> None:
        source = next((worker for worker in self._reported if worker.id == order.prefill), None)
        if source is None:
            entry.probing = None
            return
        entry.links = entry.links | {order.prefill: entry.links.get(order.prefill)}
        if order.measures:
            speed = self._links.speed(source.place, entry.worker.place)
            self._loop.call_later(self._setting.linking.measure_s, self._measured, entry, order.prefill, speed)
        else:
            entry.probing = None

    def _measured(self, entry: _ReportedWorker, prefill: WorkerId, speed: LinkSpeed) -> None:
        entry.links = entry.links | {prefill: speed}
        entry.probing = None

    def _scaled(self, sample: Sample) -> Sample:
        scale = self._reporting.seconds_scale
        return sample if scale == 1 else msgspec.structs.replace(sample, seconds=sample.seconds * scale)

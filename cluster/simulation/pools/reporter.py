"""What the Scheduler is told of simulated workers, as late and as wrong as the setting wants it."""

import asyncio
from typing import Protocol, TypeVar

import msgspec

from cluster.engine.port import ReportedEngine
from cluster.messages.ids import Address, IngressId, Pool, WorkerId
from cluster.messages.kv_events import KvChange, KvEvents
from cluster.messages.placement import Placement, PlacementRequest, Rejection
from cluster.messages.reports import ReportReply, StepSample, TransferSample, WorkerLoad, WorkerReport
from cluster.messages.scheduler_events import SchedulerEvent
from cluster.messages.transport import LinkSpeed
from cluster.simulation.pools.link_model import LinkModel
from cluster.simulation.pools.pool_setting import ClusterSetting
from cluster.simulation.pools.simulated_worker import SimulatedWorker

Sample = TypeVar("Sample", StepSample, TransferSample)

NOWHERE = Address("simulated", 0, "")
MAX_TRANSFERS = 8
"""That one report tells of."""
LONGEST_RUN_S = 1e5
"""Of virtual time. One that lasts longer waits for something that never comes; the reports keep it from ending."""


class SchedulerUnderTest(Protocol):
    """The Scheduler (router/pending_placements.py)."""

    async def place(self, request: PlacementRequest, ingress: IngressId | None = None, /) -> Placement | Rejection: ...

    def tell(self, event: SchedulerEvent, /) -> None: ...

    def report(self, report: WorkerReport, /) -> ReportReply: ...

    def kv_events(self, events: KvEvents, /) -> bool:
        """True: a snapshot of what the worker caches is wanted."""
        ...


class _Voice:
    """What is to be said of one worker."""

    __slots__ = ("is_telling", "links", "num_kv_events", "timer", "transfers", "wants_snapshot", "worker")

    def __init__(self, worker: SimulatedWorker) -> None:
        self.worker = worker
        self.timer: asyncio.TimerHandle | None = None
        self.transfers: list[TransferSample] = []
        self.links: dict[WorkerId, LinkSpeed | None] = {}
        self.num_kv_events = 0
        self.is_telling = False
        """KV events are to be sent soon."""
        self.wants_snapshot = True


class Reporter:
    def __init__(self, setting: ClusterSetting, desk: SchedulerUnderTest, links: LinkModel) -> None:
        self._setting, self._reporting = setting, setting.reporting
        self._desk = desk
        self._links = links
        self._loop = asyncio.get_running_loop()
        self._voices: dict[SimulatedWorker, _Voice] = {}

    def begin(self, worker: SimulatedWorker) -> None:
        voice = self._voices[worker] = _Voice(worker)
        self._join_up()
        if self._reporting.kv_events_s is not None:
            self._tell(voice)
        number = self._setting.prefill.number + self._setting.decode.number
        shift_s = self._reporting.interval_s * (len(self._voices) - 1) / max(number, 1)
        self._report(voice, self._reporting.interval_s + shift_s)

    def end(self, worker: SimulatedWorker) -> None:
        voice = self._voices.pop(worker)
        if voice.timer is not None:
            voice.timer.cancel()
        self._join_up()

    def note_transfer(self, worker: SimulatedWorker, sample: TransferSample) -> None:
        voice = self._voices.get(worker)
        if voice is not None and len(voice.transfers) < MAX_TRANSFERS:
            voice.transfers.append(self._scaled(sample))

    def tell_changes(self, worker: SimulatedWorker) -> None:
        """Its cache has changed."""
        voice = self._voices.get(worker)
        if voice is None or voice.is_telling:
            return
        if self._reporting.kv_events_s is None:
            worker.engine.cache.changes()
            return
        voice.is_telling = True
        self._loop.call_later(self._reporting.kv_events_s, self._tell, voice)

    def _join_up(self) -> None:
        """Every decode worker has a link from every prefill worker."""
        prefills = [worker for worker in self._voices if worker.pool is Pool.PREFILL]
        for worker, voice in self._voices.items():
            if worker.pool is Pool.DECODE:
                voice.links = {prefill.id: self._links.speed(prefill.place, worker.place) for prefill in prefills}

    def _tell(self, voice: _Voice) -> None:
        voice.is_telling = False
        if voice.worker not in self._voices:
            return
        voice.num_kv_events += 1
        is_snapshot, voice.wants_snapshot = voice.wants_snapshot, False
        cache = voice.worker.engine.cache
        changes: list[KvChange] = cache.snapshot() if is_snapshot else cache.changes()
        events = KvEvents(voice.worker.id, voice.num_kv_events, is_snapshot, True, changes)
        voice.wants_snapshot = bool(self._desk.kv_events(events))

    def _report(self, voice: _Voice, next_after_s: float | None = None) -> None:
        now = self._loop.time()
        if now > LONGEST_RUN_S:
            raise RuntimeError(f"{now:.0f} virtual seconds have passed, and requests are still open")
        worker, scale = voice.worker, self._reporting.load_scale
        engine: ReportedEngine = worker
        load = engine.load()
        if scale != 1:
            load = WorkerLoad(
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
            transfers=voice.transfers,
            kv_events_through=None if self._reporting.kv_events_s is None else voice.num_kv_events,
            links=voice.links,
        )
        voice.transfers = []
        if self._reporting.delay_s and voice.timer is not None:  # a worker's first report is its start
            self._loop.call_later(self._reporting.delay_s, self._deliver, voice, report)
        else:
            self._deliver(voice, report)
        voice.timer = self._loop.call_later(next_after_s or self._reporting.interval_s, self._report, voice)

    def _deliver(self, voice: _Voice, report: WorkerReport) -> None:
        reply = self._desk.report(report)
        if reply.wants_kv_snapshot and voice.worker in self._voices:
            voice.wants_snapshot = True
            self.tell_changes(voice.worker)

    def _scaled(self, sample: Sample) -> Sample:
        scale = self._reporting.seconds_scale
        return sample if scale == 1 else msgspec.structs.replace(sample, seconds=sample.seconds * scale)

"""Sends the reports and KV events of simulated workers to the Scheduler, as late and as wrong as the setting says."""

import asyncio
from typing import Protocol, TypeVar

import msgspec

from cluster.messages.ids import Address, IngressId, Pool, WorkerId
from cluster.messages.kv_events import KvChange, KvEvents
from cluster.messages.placement import Placement, PlacementRequest, Rejection
from cluster.messages.reports import EngineShape, ReportReply, StepSample, TransferSample, WorkerLoad, WorkerReport
from cluster.messages.scheduler_events import SchedulerEvent
from cluster.messages.transport import LinkSpeed
from cluster.simulation.pools.link_model import LinkModel
from cluster.simulation.pools.pool_setting import ClusterSetting
from cluster.simulation.pools.simulated_worker import SimulatedWorker

Sample = TypeVar("Sample", StepSample, TransferSample)

NOWHERE = Address("simulated", 0, "")
"""The address in all reports. Simulated workers have no listener."""
MAX_TRANSFERS = 8
"""Most transfer samples in one report. Lower teaches the Scheduler links more slowly; higher makes reports longer."""
LONGEST_RUN_S = 1e5
"""Longest run, in seconds of virtual time. The timers of reports keep a run going that waits for something that never
comes, so such a run ends with an error here. Lower ends long workloads; higher finds such a run later.
"""


class SchedulerUnderTest(Protocol):
    """The part of the Scheduler that a run uses, as PendingPlacements (router/pending_placements.py) implements it."""

    async def place(self, request: PlacementRequest, ingress: IngressId | None = None, /) -> Placement | Rejection: ...

    def tell(self, event: SchedulerEvent, /) -> None: ...

    def report(self, report: WorkerReport, /) -> ReportReply: ...

    def kv_events(self, events: KvEvents, /) -> bool:
        """Apply the events. True if the Scheduler needs a snapshot of the worker's cache."""
        ...


class _Voice:
    """What is to be reported of one worker next."""

    __slots__ = ("is_telling", "links", "num_kv_events", "shape", "timer", "transfers", "wants_snapshot", "worker")

    def __init__(self, worker: SimulatedWorker, shape: EngineShape) -> None:
        self.worker = worker
        self.shape = shape
        self.timer: asyncio.TimerHandle | None = None
        self.transfers: list[TransferSample] = []
        self.links: dict[WorkerId, LinkSpeed | None] = {}
        self.num_kv_events = 0
        self.is_telling = False
        """Whether a timer is set that sends the worker's KV events."""
        self.wants_snapshot = True


class Reporter:
    """Reports every live worker in intervals, and sends KV events after changes of the workers' caches."""

    def __init__(self, setting: ClusterSetting, desk: SchedulerUnderTest, links: LinkModel) -> None:
        self._setting, self._reporting = setting, setting.reporting
        self._desk = desk
        self._links = links
        self._loop = asyncio.get_running_loop()
        self._voices: dict[SimulatedWorker, _Voice] = {}

    def begin(self, worker: SimulatedWorker) -> None:
        engine = worker.setting.engine
        shape = EngineShape(
            kind=worker.setting.kind,
            kv_capacity_tokens=engine.kv_capacity_tokens,
            block_size=engine.block_size,
            max_step_tokens=engine.max_step_tokens,
            max_decoding=engine.max_decoding,
            kv_bytes_per_token=self._setting.kv_bytes_per_token,
        )
        voice = self._voices[worker] = _Voice(worker, shape)
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
        """Send KV events soon, because the cache of this worker has changed."""
        voice = self._voices.get(worker)
        if voice is None or voice.is_telling:
            return
        if self._reporting.kv_events_s is None:
            worker.engine.cache.changes()
            return
        voice.is_telling = True
        self._loop.call_later(self._reporting.kv_events_s, self._tell, voice)

    def _join_up(self) -> None:
        """Give every decode worker a link from every prefill worker."""
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
            raise RuntimeError(f"requests are still open after {now:.0f} virtual seconds")
        worker, scale = voice.worker, self._reporting.load_scale
        load, steps = worker.engine.load(now), worker.engine.samples()
        if scale != 1:
            load = WorkerLoad(
                num_running=round(load.num_running * scale),
                num_waiting=round(load.num_waiting * scale),
                kv_cache_usage=min(1.0, load.kv_cache_usage * scale),
                num_steps=load.num_steps,
            )
        report = WorkerReport(
            worker=worker.id,
            pool=worker.pool,
            address=NOWHERE,
            load=load,
            max_requests=worker.setting.max_requests,
            shape=voice.shape,
            steps=[self._scaled(step) for step in steps],
            transfers=voice.transfers,
            kv_events_through=None if self._reporting.kv_events_s is None else voice.num_kv_events,
            links=voice.links,
        )
        voice.transfers = []
        # The first report of a worker is its start, and is not delayed.
        if self._reporting.delay_s and voice.timer is not None:
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

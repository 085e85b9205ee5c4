"""RecordedState: RouterState, and a record of each call that may change it, with the clock and the answer.

It has those methods of RouterState that the Scheduler's service calls, and they do the same. What only reads the state
is passed on without a record. A file of the log begins between two calls, before `place`, `decide` or `handle`, so that
its snapshot is of the state then.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Protocol, final

from cluster.messages.ids import Address, IngressId, RequestId, SloClass, WorkerId
from cluster.messages.kv_events import KvEvents
from cluster.messages.operations import SchedulerStatus
from cluster.messages.placement import Placement, PlacementRequest, Rejection
from cluster.messages.reports import DeltaReply, ReportDelta, ReportReply, WorkerReport
from cluster.messages.scaling import LoadReading, ScalingAsk
from cluster.messages.scheduler_events import Pause, SchedulerEvent, WorkerLeft
from cluster.messages.views import ClusterView, QueuedRequest, RosterChange
from router.admission.admission_control import Decision
from router.admission.waiting_queue import MAX_QUEUE
from router.recording.records import (
    Answer,
    Decided,
    Disconnected,
    Drained,
    Indexed,
    IndexMissed,
    IndexSwept,
    IngressWithdrawn,
    KeptOpen,
    Left,
    Looked,
    PausesTaken,
    PlacementAsked,
    Quarantined,
    Replied,
    Reported,
    ReportedWhole,
    Retired,
    Stimulus,
    Told,
    replied,
)
from router.state import RouterState
from router.trust.quarantined_workers import QuarantineChange

SMALL: Final = 150
"""Bytes as which a record without lists counts in the log's queue: about what it takes in memory. Higher drops records
sooner when the disk is slow; lower lets the queue take more memory than it says.
"""
KEY: Final = 12
"""The same for each key of a KV block, in bytes."""
ANSWER: Final = 800
"""The same for a placement with its predictions, in bytes."""
STEP: Final = 60
"""The same for a sample of a step, in bytes."""


class StimulusSink(Protocol):
    """Where records go (router/recording/log_files.py)."""

    def add(self, record: Stimulus, num_bytes: int) -> None:
        """`num_bytes`: about what the record takes. Must not raise or wait."""
        ...

    @property
    def is_due(self) -> bool:
        """Whether the next file is to begin, with a snapshot."""
        ...

    def begin_file(self, state: RouterState) -> None:
        """Begin the next file with a snapshot of the state. Must not raise."""
        ...


@final
class RecordedState:
    def __init__(self, state: RouterState, log: StimulusSink) -> None:
        self._state = state
        self._log = log
        self._add: Add = log.add
        self.suspects = state.suspects
        self.lost = state.lost
        self.exchange = RecordedExchange(state)
        self.index = RecordedIndex(state, self._add)
        self.load = RecordedLoad(state, self._add)
        self.quarantined = RecordedQuarantine(state, self._add)
        self.status = RecordedStatus(state, self._add)
        self.workers = RecordedWorkers(state, self._add)

    def place(
        self,
        request: PlacementRequest,
        now: float,
        ingress: IngressId | None = None,
        *,
        turns_away: bool = False,
    ) -> Placement | Rejection | None:
        if self._log.is_due:
            self._log.begin_file(self._state)
        num_bytes = ANSWER + SMALL + KEY * len(request.block_hashes)
        try:
            answer = self._state.place(request, now, ingress, turns_away=turns_away)
        except Exception as error:
            self._add(PlacementAsked(now, ingress, request, turns_away, _defect(error)), num_bytes)
            raise
        self._add(PlacementAsked(now, ingress, request, turns_away, answer), num_bytes)
        return answer

    def decide(self, now: float, most: int = MAX_QUEUE) -> list[Decision]:
        if self._log.is_due:
            self._log.begin_file(self._state)
        decisions = self._state.decide(now, most)
        noted: list[tuple[RequestId, Answer]] = [
            (request_id, _defect(answer) if isinstance(answer, Exception) else answer)
            for request_id, answer in decisions
        ]
        self._add(Decided(now, most, noted), SMALL + ANSWER * len(noted))
        return decisions

    def take_pauses(self) -> list[tuple[IngressId | None, Pause, SloClass]]:
        pauses = self._state.take_pauses()
        if pauses:
            self._add(PausesTaken(pauses), SMALL * len(pauses))
        return pauses

    def handle(
        self, event: WorkerReport | WorkerLeft | SchedulerEvent, now: float, ingress: IngressId | None = None
    ) -> None:
        if self._log.is_due:
            self._log.begin_file(self._state)
        match event:
            case WorkerReport():
                try:
                    self._state.handle(event, now)
                except Exception:
                    self._note_report(event, now, None)
                    raise
                return  # `reply_to` follows
            case WorkerLeft():
                self._add(Left(now, event), SMALL)
            case _:
                self._add(Told(now, ingress, event), SMALL)
        self._state.handle(event, now, ingress)

    def reply_to(self, report: WorkerReport, now: float) -> ReportReply:
        reply = self._state.reply_to(report, now)
        self._note_report(report, now, replied(reply))
        return reply

    def disconnected(self, worker: WorkerId) -> None:
        self._add(Disconnected(worker), SMALL)
        self._state.disconnected(worker)

    def handle_kv_events(self, events: KvEvents, now: float) -> bool:
        num_keys = sum([4 + len(change.block_hashes or ()) for change in events.changes])
        self._add(Indexed(now, events), SMALL + KEY * num_keys)
        return self._state.handle_kv_events(events, now)

    def keep_open(self, ingress: IngressId, open_requests: frozenset[RequestId], now: float) -> list[RequestId]:
        self._add(KeptOpen(now, ingress, open_requests), SMALL * (1 + len(open_requests)))
        return self._state.keep_open(ingress, open_requests, now)

    def withdraw_of(self, ingress: IngressId) -> list[RequestId]:
        self._add(IngressWithdrawn(ingress), SMALL)
        return self._state.withdraw_of(ingress)

    def roster(self, since: int, now: float) -> RosterChange:
        self._add(Looked(now, at_queue=False), SMALL)
        return self._state.roster(since, now)

    def queued(self, now: float) -> list[QueuedRequest]:
        self._add(Looked(now, at_queue=True), SMALL)
        return self._state.queued(now)

    def next_decision_at(self) -> float | None:
        return self._state.next_decision_at()

    def take_mismatches(self) -> list[str]:
        return self._state.take_mismatches()

    def view(self, now: float) -> ClusterView:
        return self._state.view(now)

    def address_of(self, worker: WorkerId) -> Address | None:
        return self._state.address_of(worker)

    @property
    def num_waiting(self) -> int:
        return self._state.num_waiting

    def validate(self) -> None:
        """Assert every invariant."""
        self._state.validate()

    def _note_report(self, report: WorkerReport, now: float, reply: Replied | None) -> None:
        num_bytes = SMALL * (3 + len(report.requests or ())) + STEP * len(report.steps)
        delta = self.exchange.take_delta(report)
        if delta is None:
            self._add(ReportedWhole(now, report, reply), num_bytes)
        else:
            self._add(Reported(now, delta, reply), num_bytes)


@final
class RecordedExchange:
    """ReportExchange, which remembers the delta that the next report was."""

    def __init__(self, state: RouterState) -> None:
        self._exchange = state.exchange
        self._report: WorkerReport | None = None
        self._delta: ReportDelta | None = None

    def whole(self, delta: ReportDelta) -> WorkerReport | None:
        self._report, self._delta = self._exchange.whole(delta), delta
        return self._report

    def reply(self, report: WorkerReport, reply: ReportReply) -> DeltaReply:
        return self._exchange.reply(report, reply)

    def take_delta(self, report: WorkerReport) -> ReportDelta | None:
        """What came as this report. None if it came as a whole."""
        delta = self._delta if report is self._report else None
        self._report = self._delta = None
        return delta


class Add(Protocol):
    def __call__(self, record: Stimulus, num_bytes: int, /) -> None: ...


@final
class RecordedIndex:
    """What the service calls of the prefix index."""

    def __init__(self, state: RouterState, add: Add) -> None:
        self._index = state.index
        self._add = add

    @property
    def needs_sweep(self) -> bool:
        return self._index.needs_sweep

    def sweep(self) -> None:
        self._add(IndexSwept(), SMALL)
        self._index.sweep()

    def miss(self, worker: WorkerId) -> None:
        self._add(IndexMissed(worker), SMALL)
        self._index.miss(worker)


@final
class RecordedQuarantine:
    """The methods of QuarantinedWorkers that change it."""

    def __init__(self, state: RouterState, add: Add) -> None:
        self._workers = state.quarantined
        self._add = add

    def told(self, workers: Mapping[WorkerId, str], now: float, lease: int = 0) -> QuarantineChange:
        self._add(Quarantined(now, dict(workers), lease), SMALL * (1 + len(workers)))
        return self._workers.told(workers, now, lease)


@final
class RecordedStatus:
    """What operators ask for, which looks at the queue."""

    def __init__(self, state: RouterState, add: Add) -> None:
        self._status = state.status
        self._add = add
        self.begin = state.status.begin

    def read(self, now: float) -> SchedulerStatus:
        self._add(Looked(now, at_queue=True), SMALL)
        return self._status.read(now)


@final
class RecordedWorkers:
    """The part of LiveWorkers that drains of operators need."""

    def __init__(self, state: RouterState, add: Add) -> None:
        self._workers = state.workers
        self._add = add
        self.drains = state.workers.drains
        self.by_id = state.workers.by_id
        self.live = state.workers.live
        self.quarantined = state.workers.quarantined

    def drain(self, workers: Iterable[WorkerId]) -> None:
        drained = list(workers)
        self._add(Drained(drained), SMALL * (1 + len(drained)))
        self._workers.drain(drained)


@final
class RecordedLoad:
    """The readings for whoever sizes the pools."""

    def __init__(self, state: RouterState, add: Add) -> None:
        self._load = state.load
        self._add = add

    def read(self, ask: ScalingAsk, scheduler: str, now: float) -> LoadReading:
        self._add(Retired(now, ask.retiring), SMALL * (1 + len(ask.retiring)))
        return self._load.read(ask, scheduler, now)


State = RouterState | RecordedState


def _defect(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"

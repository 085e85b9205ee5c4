"""Applies the records of a stimulus log to a RouterState: the production code, with the inputs of then. Pure.

Each record makes one call, and what is decided is compared with what was decided then.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple, assert_never, final

import msgspec

from cluster.messages.ids import IngressId, SloClass
from cluster.messages.reports import WorkerReport
from cluster.messages.scaling import ScalingAsk
from cluster.messages.scheduler_events import Pause
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
    LogGap,
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

WAITS = "waits"
"""The answer to a request that waits."""
Pauses = list[tuple[IngressId | None, Pause, SloClass]]
Outcome = Answer | Replied | Pauses | None

Seldom = Disconnected | IndexMissed | IndexSwept | IngressWithdrawn | Looked | Retired | Quarantined | Drained | LogGap


class DecisionKind(StrEnum):
    """What is decided."""

    PLACEMENT = "placement"
    """The answer to a request: a placement, a refusal, or that it waits."""
    PAUSE = "pause"
    """Which running requests are asked to pause."""
    REPLY = "reply"
    """What a reply asks of a worker: links to prove, snapshots, lists of requests."""


class Decision(NamedTuple):
    """One decision, as it was made then and now."""

    kind: DecisionKind
    now: float
    """The Scheduler's clock, in seconds."""
    subject: str
    """The request, or the worker."""
    then: Outcome
    again: Outcome
    is_new: bool = False
    """The request was asked for with this call, and had not waited."""

    @property
    def is_equal(self) -> bool:
        return self.then == self.again or msgspec.msgpack.encode(self.then) == msgspec.msgpack.encode(self.again)


@final
class Stepper:
    def __init__(self, state: RouterState, on_decision: Callable[[Decision], None]) -> None:
        self.state = state
        self.num_failed = 0
        """Calls that have failed: then as well, unless decisions differ."""
        self._on_decision = on_decision
        self._now = 0.0
        self._pauses: Pauses = []
        """Pauses that were asked for by the latest call, and not in the log yet."""

    def apply(self, record: Stimulus) -> None:
        if not isinstance(record, PausesTaken):
            self.end_pauses()
        try:
            self._apply(record)
        except Exception:  # it must not keep the others from being replayed
            self.num_failed += 1

    def end_pauses(self) -> None:
        """The log has no more of the pauses that were asked for."""
        if self._pauses:
            pauses, self._pauses = self._pauses, []
            self._decided(DecisionKind.PAUSE, str(pauses[0][1].request_id), [], pauses)

    def _apply(self, record: Stimulus) -> None:
        state = self.state
        match record:
            case PlacementAsked():
                self._ask(record)
            case Decided():
                self._decide(record)
            case PausesTaken():
                again, self._pauses = self._pauses, []
                self._decided(DecisionKind.PAUSE, str(record.pauses[0][1].request_id), record.pauses, again)
            case Told():
                self._now = record.now
                state.handle(record.event, record.now, record.ingress)
            case Left():
                state.handle(record.event, record.now)
            case Reported():
                report = state.exchange.whole(record.delta)
                if report is not None:  # other policies may have forgotten the worker
                    self._report(report, record.now, record.reply)
            case ReportedWhole():
                self._report(record.report, record.now, record.reply)
            case Indexed():
                state.handle_kv_events(record.events, record.now)
            case KeptOpen():
                state.keep_open(record.ingress, record.requests, record.now)
            case _:
                self._apply_seldom(record)

    def _apply_seldom(self, record: Seldom) -> None:
        state = self.state
        match record:
            case Disconnected():
                state.disconnected(record.worker)
            case IndexMissed():
                state.index.miss(record.worker)
            case IndexSwept():
                state.index.sweep()
            case IngressWithdrawn():
                state.withdraw_of(record.ingress)
            case Looked(at_queue=True):
                state.queued(record.now)
            case Looked():
                state.roster(0, record.now)
            case Retired():
                state.load.read(ScalingAsk(record.workers), "", record.now)
            case Quarantined():
                state.quarantined.told(record.workers, record.now, record.lease)
            case Drained():
                state.workers.drain(record.workers)
            case LogGap():
                pass
            case _:
                assert_never(record)

    def _ask(self, record: PlacementAsked) -> None:
        self._now = record.now
        again: Answer
        try:
            placed = self.state.place(record.request, record.now, record.ingress, turns_away=record.turns_away)
            again = WAITS if placed is None else placed
        except Exception as error:
            again = f"{type(error).__name__}: {error}"
        then = WAITS if record.answer is None else record.answer
        self._on_decision(
            Decision(DecisionKind.PLACEMENT, self._now, record.request.request_id, then, again, is_new=True)
        )
        if not record.turns_away:
            self._pauses = self.state.take_pauses()

    def _decide(self, record: Decided) -> None:
        self._now = record.now
        then: dict[str, Answer] = dict(record.decisions)
        again: dict[str, Answer] = {
            request_id: f"{type(answer).__name__}: {answer}" if isinstance(answer, Exception) else answer
            for request_id, answer in self.state.decide(record.now, record.most)
        }
        for request_id in {**then, **again}:
            self._decided(DecisionKind.PLACEMENT, request_id, then.get(request_id, WAITS), again.get(request_id, WAITS))
        self._pauses = self.state.take_pauses()

    def _report(self, report: WorkerReport, now: float, then: Replied | None) -> None:
        self._now = now
        self.state.handle(report, now)
        self._decided(DecisionKind.REPLY, report.worker, then, replied(self.state.reply_to(report, now)))

    def _decided(self, kind: DecisionKind, subject: str, then: Outcome, again: Outcome) -> None:
        self._on_decision(Decision(kind, self._now, subject, then, again))

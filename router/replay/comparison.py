"""Comparison: how many decisions of a replay are those of then, and which is the first that is not. Pure."""

from collections import Counter
from typing import Final, final

import msgspec

from cluster.messages.placement import Placement, Rejection
from router.recording.records import LogHeader, Replied, Stimulus
from router.replay.stepper import WAITS, Decision, DecisionKind, Outcome, Stepper
from router.state import RouterState

MAX_NOTES: Final = 20
"""Notes on missing records that are kept. More fills the screen; fewer hides where a damaged log has holes."""


class DecisionDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A decision that is made otherwise now."""

    kind: DecisionKind
    at: float
    """Unix time, in seconds."""
    subject: str
    """The request, or the worker."""
    then: str
    again: str


@final
class Comparison:
    """A Watch (router/replay/replay.py)."""

    def __init__(self, since: float | None = None) -> None:
        """`since`: Unix time before which nothing is compared, in seconds."""
        self.num_equal: Counter[DecisionKind] = Counter()
        self.num_different: Counter[DecisionKind] = Counter()
        self.num_inexact = 0
        """Decisions that were made again without all records before them, and not compared."""
        self.num_failed = 0
        """Calls that have failed."""
        self.first: DecisionDifference | None = None
        self.notes: list[str] = []
        self.headers: list[LogHeader] = []
        self._since = since
        self._is_exact = False
        self._wall_s = 0.0
        self._stepper: Stepper | None = None

    def begins(self, header: LogHeader, state: RouterState, *, is_exact: bool) -> Stepper:
        self.end()
        self._is_exact = is_exact
        self._stepper = Stepper(state, self.decided)
        return self._stepper

    def file(self, header: LogHeader) -> None:
        self.headers.append(header)

    def record(self, record: Stimulus, wall_s: float) -> None:
        self._wall_s = wall_s

    def inexact(self, why: str) -> None:
        self._is_exact = False
        if len(self.notes) < MAX_NOTES:
            self.notes.append(why)

    def end(self) -> None:
        """No more records follow for the stepper."""
        if self._stepper is not None:
            self._stepper.end_pauses()
            self.num_failed += self._stepper.num_failed
            self._stepper = None

    def decided(self, decision: Decision) -> None:
        if self._since is not None and self._wall_s < self._since:
            return
        if not self._is_exact:
            self.num_inexact += 1
        elif decision.is_equal:
            self.num_equal[decision.kind] += 1
        else:
            self.num_different[decision.kind] += 1
            if self.first is None:
                self.first = DecisionDifference(
                    kind=decision.kind,
                    at=self._wall_s,
                    subject=decision.subject,
                    then=told(decision.then),
                    again=told(decision.again),
                )


def told(outcome: Outcome) -> str:
    """A decision in words."""
    match outcome:
        case None:
            return "asks for nothing"
        case str():
            return outcome if outcome == WAITS else f"fails: {outcome}"
        case Placement():
            workers = " and ".join(filter(None, (outcome.prefill, outcome.decode)))
            return f"path {outcome.path} on {workers}{_cost(outcome)}"
        case Rejection():
            return f"refused for {outcome.retry_after_s:g} s: {outcome.why}"
        case Replied():
            return f"asks for {_asked_for(outcome)}"
    pauses = [f"{pause.request_id} (placement {pause.attempt})" for _, pause, _ in outcome]
    return f"pauses {', '.join(pauses)}" if pauses else "pauses nothing"


def _cost(placement: Placement) -> str:
    predicted = placement.predicted
    if predicted is None:
        return ", without a prediction"
    return f", cost {predicted.cost:.6g}, TTFT {predicted.ttft_s:.4g} s, TPOT {1e3 * predicted.tpot_s:.4g} ms"


def _asked_for(reply: Replied) -> str:
    what = []
    if reply.link is not None:
        what.append(f"{'a measurement' if reply.link.measures else 'a proof'} of the link to {reply.link.prefill}")
    if reply.gone:
        what.append(f"forgetting the links to {', '.join(reply.gone)}")
    if reply.wants_kv_snapshot:
        what.append("a snapshot of its caches")
    if reply.wants_requests:
        what.append("its requests")
    return ", ".join(what)

"""What would have been decided with other objectives, another limit or another policy: the same stimuli, once more.

Only the Scheduler is another one. Workers, clients and the times of events are those of then: a request that is placed
elsewhere still gets its first token when it got it then, and reports tell of the load of then. So the decisions are
right at first, and drift from what a service would do the longer it goes on otherwise.

Other requests wait here than then. So where nothing waited then, the stepper decides by itself when requests that wait
are looked at, by the rules of router/pending_placements.py. Without a change, all decisions are those of then.
"""

from collections import Counter
from enum import StrEnum
from math import inf
from typing import Final, final

import msgspec

from cluster.messages.ids import RequestId
from cluster.messages.placement import Placement, Rejection
from cluster.slo import SloConfig
from router.pending_placements import DECIDE_INTERVAL_S, MOST_PER_TURN
from router.recording.records import Answer, Decided, LogHeader, PlacementAsked, Stimulus
from router.replay.stepper import WAITS, Decision, DecisionKind, Stepper
from router.state import RouterState

MAX_OPEN: Final = 100_000
"""Answers that wait for their counterparts. More takes memory, half a kilobyte each; fewer counts requests that wait
for long as undecided.
"""


GRACE_S: Final = 0.1
"""Time after which the stepper looks by itself, in seconds: a Scheduler that was busy looked so much later then. Longer
has requests wait that did not wait then; shorter looks twice, which changes decisions though nothing is set up
otherwise.
"""


class Change(StrEnum):
    """How an answer differs from that of then."""

    SAME = "the same workers"
    OTHER_WORKERS = "other workers on the same path"
    OTHER_PATH = "another path"
    PLACED = "placed instead of refused"
    REFUSED = "refused instead of placed"
    STILL_REFUSED = "refused then and now"
    UNDECIDED = "no answer then or now"


class BadChange(ValueError):
    """A change of the config that cannot be tried."""


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What is set up otherwise."""

    slo: dict[str, dict[str, float]] = {}
    max_indexed_blocks: int | None = None

    def slo_of(self, header: LogHeader) -> SloConfig:
        """Raises BadChange for objectives that cannot be."""
        known = msgspec.to_builtins(header.slo)
        for name, fields in self.slo.items():
            known[name] = known[name] | fields
        try:
            return msgspec.convert(known, SloConfig)
        except msgspec.ValidationError as error:
            raise BadChange(f"slo: {error}") from error


def parse_changes(texts: list[str]) -> Changes:
    """`KEY=VALUE` each, with the keys of the config. Raises BadChange."""
    slo: dict[str, dict[str, float]] = {}
    max_indexed_blocks = None
    for text in texts:
        key, equals, value = text.partition("=")
        parts = key.strip().split(".")
        if not equals:
            raise BadChange(f"{text!r} is not KEY=VALUE")
        if parts == ["scheduler", "max_indexed_blocks"]:
            max_indexed_blocks = int(_number(key, value))
        elif len(parts) == 3 and parts[0] == "slo" and parts[1] in SloConfig.__struct_fields__:
            slo.setdefault(parts[1], {})[parts[2]] = _number(key, value)
        else:
            raise BadChange(
                f"{key!r} cannot be tried: of the config, slo.CLASS.KEY and scheduler.max_indexed_blocks decide "
                "placements, and policy"
            )
    return Changes(slo=slo, max_indexed_blocks=max_indexed_blocks)


def _number(key: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise BadChange(f"{key}: {value!r} is not a number") from None


@final
class WhatIf:
    """A Watch (router/replay/replay.py) that compares the answers of all requests."""

    def __init__(self, since: float | None = None) -> None:
        """`since`: Unix time before which nothing is compared, in seconds."""
        self.changes: Counter[Change] = Counter()
        self.num_waited = [0, 0]
        """Requests that waited for their answer, then and now."""
        self.headers: list[LogHeader] = []
        self.notes: list[str] = []
        self._since = since
        self._wall_s = 0.0
        self._attempts: dict[RequestId, int] = {}
        self._open: dict[tuple[RequestId, int], list[Answer | None]] = {}
        """The answers of then and of now to each placement that was asked for, where one of them is missing."""

    def begins(self, header: LogHeader, state: RouterState, *, is_exact: bool) -> "DecidingStepper":
        self.end()
        return DecidingStepper(state, self)

    def file(self, header: LogHeader) -> None:
        self.headers.append(header)

    def inexact(self, why: str) -> None:
        self.notes.append(why)

    def record(self, record: Stimulus, wall_s: float) -> None:
        self._wall_s = wall_s
        match record:
            case PlacementAsked():
                key = record.request.request_id, record.request.attempt
                self._attempts[key[0]] = key[1]
                if self._since is None or wall_s >= self._since:
                    self._open[key] = [None, None]
                    self.num_waited[0] += record.answer is None
                if record.answer is not None:
                    self.answered(key[0], record.answer, is_now=False)
                if len(self._open) > MAX_OPEN:
                    del self._open[next(iter(self._open))]
                    self.changes[Change.UNDECIDED] += 1
            case Decided():
                for request_id, answer in record.decisions:
                    self.answered(request_id, answer, is_now=False)

    def waits(self) -> None:
        """A request has to wait now."""
        if self._since is None or self._wall_s >= self._since:
            self.num_waited[1] += 1

    def answered(self, request_id: RequestId, answer: Answer, *, is_now: bool) -> None:
        key = request_id, self._attempts.get(request_id, 0)
        both = self._open.get(key)
        if both is None:
            return
        both[is_now] = answer
        then, now = both
        if then is not None and now is not None:
            del self._open[key]
            self.changes[change_of(then, now)] += 1

    def end(self) -> None:
        """No more records follow for the state."""
        self.changes[Change.UNDECIDED] += len(self._open)
        self._open.clear()
        self._attempts.clear()


def change_of(then: Answer, now: Answer) -> Change:
    match then, now:
        case Placement(), Placement():
            if then.path is not now.path:
                return Change.OTHER_PATH
            is_same = (then.prefill, then.decode) == (now.prefill, now.decode)
            return Change.SAME if is_same else Change.OTHER_WORKERS
        case Placement(), _:
            return Change.REFUSED
        case Rejection(), Placement():
            return Change.PLACED
        case Rejection(), Rejection():
            return Change.STILL_REFUSED
    return Change.UNDECIDED


@final
class DecidingStepper:
    """Looks at requests that wait when the Scheduler did, and by itself where nothing waited then."""

    def __init__(self, state: RouterState, watch: WhatIf) -> None:
        self._state = state
        self._watch = watch
        self._stepper = Stepper(state, self._decided)
        self._decided_at = -inf
        self._decides_at = inf
        """When the Scheduler would look next."""

    def apply(self, record: Stimulus) -> None:
        now = getattr(record, "now", None)
        if now is None:
            self._stepper.apply(record)
            return
        while self._decides_at + GRACE_S < now and self._state.num_waiting:
            self._stepper.apply(Decided(self._decides_at, MOST_PER_TURN, []))
            self._has_decided(self._decides_at)
        self._stepper.apply(record)
        if isinstance(record, Decided):
            self._has_decided(now)
        else:
            self._decides_at = min(self._decides_at, max(now, self._decided_at + DECIDE_INTERVAL_S))

    def _has_decided(self, now: float) -> None:
        self._decided_at = now
        next_at = self._state.next_decision_at()
        self._decides_at = inf if next_at is None else max(next_at, now + DECIDE_INTERVAL_S)

    def _decided(self, decision: Decision) -> None:
        answer = decision.again
        if decision.kind is not DecisionKind.PLACEMENT:
            return
        if isinstance(answer, Placement | Rejection):
            self._watch.answered(RequestId(decision.subject), answer, is_now=True)
        elif answer == WAITS and decision.is_new:
            self._watch.waits()

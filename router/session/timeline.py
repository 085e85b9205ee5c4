"""The timeline of a request: which part of its time passed where. Pure.

Stages are seconds from the arrival of the request at the ingress. The clocks of two machines are never compared. A
worker measures its stages from the time at which it got the request, and the ingress lays them between its own times of
sending and getting. What neither has measured of that time is taken for the way, half there (`send`) and half back
(`network`). What a worker has not measured between its stages is `wait`. `UNMEASURED` lists these (cluster/messages/).

Stages of one place do not overlap. The stages of a request until its first token have no gap.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby

from cluster.messages.ids import Outcome, WorkerId
from cluster.messages.placement import Placement, Rejection
from cluster.messages.timeline import UNMEASURED, Note, TimelineStage
from cluster.step_stream.stage_log import IN_QUEUE
from cluster.step_stream.way import CONNECT, DELIVER

INGRESS, SCHEDULER = "ingress", "scheduler"
MAX_STAGES = 64
"""Stages of one attempt. Further steps of a long prompt are put together. More makes receipts larger; fewer shows less.
"""
ROUNDING_S = 1e-6
"""Shortest gap in a worker's stages that is a stage of its own, in seconds. Longer leaves parts of the time out;
shorter shows the rounding of numbers.
"""
COMPUTING = frozenset({"prefill", "wait"})
"""Stages of a prompt that is computed in several steps."""


class AttemptTimeline:
    """What the ingress has measured of one attempt. Times are seconds since the arrival of the request."""

    __slots__ = (
        "_asked_s",
        "_checked_s",
        "_first",
        "_first_s",
        "_placed_s",
        "_placement",
        "_prefill",
        "_prefilled_s",
        "_released_s",
        "is_resumed",
        "num_steps",
    )

    def __init__(self, placement: Placement, asked_s: float, placed_s: float, *, is_resumed: bool = False) -> None:
        """`is_resumed`: the attempt before was paused."""
        self._placement = placement
        self._asked_s = asked_s
        self._placed_s = placed_s
        self.is_resumed = is_resumed
        self._prefilled_s: float | None = None
        self._prefill: Sequence[TimelineStage] = ()
        self._released_s: float | None = None
        self._first_s: float | None = None
        self._first: Sequence[TimelineStage] = ()
        self._checked_s: float | None = None
        self.num_steps = 0
        """Engine steps between the first and the last token, by the worker."""

    def prefilled(self, now_s: float, stages: Sequence[TimelineStage] | None) -> None:
        """The answer of the prefill worker has come. `stages`: of this worker."""
        self._prefilled_s, self._prefill = now_s, stages or ()

    def released(self, now_s: float) -> None:
        """The token of the prefill worker is given to the client."""
        self._released_s = now_s

    def generated(self, now_s: float, stages: Sequence[TimelineStage] | None) -> None:
        """The first tokens of the worker that generates have come."""
        self._first_s, self._first = now_s, stages or ()

    def checked(self, now_s: float) -> None:
        """The handoff was checked, if it had to be."""
        self._checked_s = now_s

    def stages(self, ended_s: float, end: str, num_tokens: int) -> tuple[TimelineStage, ...]:
        """`ended_s`: the end of the attempt, which was `end`. `num_tokens`: of the worker that generates."""
        placement, worker = self._placement, self._placement.generating
        stages, at = self._placing(), self._placed_s
        if placement.prefill is not None and placement.decode is not None:
            if self._prefilled_s is None:
                return (*stages, TimelineStage(end, at, ended_s, placement.prefill, {"waits_for": "prefill"}))
            stages += at_worker(placement.prefill, "prefill", self._prefill, at, self._prefilled_s)
            at = self._prefilled_s
            if self._first_s is None and end == Outcome.FINISHED:  # the first token is the whole answer
                return bounded([*stages, TimelineStage("release", at, ended_s, INGRESS)])
            if self._released_s is not None and self._released_s - at > ROUNDING_S:
                stages.append(TimelineStage("hold", at, self._released_s, INGRESS))
        if self._first_s is None:
            if ended_s - at > ROUNDING_S:
                stages.append(TimelineStage(end, at, ended_s, worker, {"waits_for": "first_token"}))
            return bounded(stages)
        stages += at_worker(worker, "generate", self._first, at, self._first_s)
        at = self._first_s
        if self._checked_s is not None and self._checked_s - at > ROUNDING_S:
            stages.append(TimelineStage("verify", at, self._checked_s, INGRESS))
            at = self._checked_s
        notes: dict[str, Note] = {"tokens": num_tokens}
        if self.num_steps:
            notes["steps"] = self.num_steps
        stages.append(TimelineStage("decode", at, max(at, ended_s), worker, notes))
        return bounded(stages)

    def _placing(self) -> list[TimelineStage]:
        placement, asked_s, placed_s = self._placement, self._asked_s, self._placed_s
        stages = list[TimelineStage]()
        began_s = min(asked_s + placement.queued_s, placed_s)
        if began_s - asked_s > ROUNDING_S or self.is_resumed:
            stages.append(TimelineStage("pause" if self.is_resumed else "queue", asked_s, began_s, SCHEDULER))
        notes: dict[str, Note] = {"path": placement.path, "why": placement.why}
        if placement.predicted is not None:
            notes["predicted_ttft_s"] = round(placement.predicted.ttft_s, 6)
            notes["predicted_tpot_s"] = round(placement.predicted.tpot_s, 6)
        if placement.considered:
            notes["options"] = len(placement.considered)
        if placement.num_hit_tokens:
            notes["expected_hit_tokens"] = placement.num_hit_tokens
        return [*stages, TimelineStage("placement", began_s, placed_s, SCHEDULER, notes)]


def preparation(rendered_s: float | None, asked_s: float, num_prompt_tokens: int) -> list[TimelineStage]:
    """The stages before the first placement was asked for. `rendered_s`: when the prompt was tokenized, if known."""
    rendered_s = asked_s if rendered_s is None else max(0.0, min(rendered_s, asked_s))
    stages = [TimelineStage("prepare", 0.0, rendered_s, INGRESS, {"prompt_tokens": num_prompt_tokens})]
    if asked_s > rendered_s:
        stages.append(TimelineStage("admit", rendered_s, asked_s, INGRESS))
    return stages


def unplaced(asked_s: float, ended_s: float, rejection: Rejection | None, *, is_paused: bool) -> TimelineStage:
    """The wait for a placement that did not come."""
    notes: dict[str, Note] = {} if rejection is None else {"why": rejection.why, "options": len(rejection.considered)}
    return TimelineStage("pause" if is_paused else "queue", asked_s, ended_s, SCHEDULER, notes)


def at_worker(
    worker: WorkerId, of: str, measured: Sequence[TimelineStage], sent_s: float, got_s: float
) -> list[TimelineStage]:
    """The stages between the sending of a message to a worker and its answer. `of`: what was asked for. `measured`: by
    the worker, and on the way by the ingress.
    """
    inside = without_gaps([stage for stage in measured if stage.name not in (CONNECT, DELIVER)])
    if not inside:
        return [TimelineStage("unmeasured", sent_s, got_s, worker, {"of": of})]
    own = {stage.name: stage for stage in measured}
    asked_s = min(sent_s + own[CONNECT].end_s, got_s) if CONNECT in own else sent_s
    came_s = min(max(asked_s, asked_s + own[DELIVER].start_s), got_s) if DELIVER in own else got_s
    began_s = asked_s + max(0.0, (came_s - asked_s - inside[-1].end_s) / 2)
    stages = [TimelineStage(CONNECT, sent_s, asked_s, worker)] if asked_s > sent_s else []
    stages.append(TimelineStage("send", asked_s, began_s, worker))
    for stage in inside:
        start_s, end_s = min(began_s + stage.start_s, came_s), min(began_s + stage.end_s, came_s)
        stages.append(TimelineStage(stage.name, start_s, end_s, worker, stage.notes))
    stages.append(TimelineStage("network", stages[-1].end_s, came_s, worker))
    if DELIVER in own:
        stages.append(TimelineStage(DELIVER, came_s, got_s, worker))
    return stages


def without_gaps(measured: Sequence[TimelineStage]) -> list[TimelineStage]:
    """A worker's stages in their order, from 0 on, without overlaps. Time that no stage has is `wait`, or
    `engine_queue` where the request was in the engine's queue.
    """
    queued = [stage for stage in measured if stage.name == IN_QUEUE]
    stages, at = list[TimelineStage](), 0.0
    for stage in sorted(measured, key=lambda stage: (stage.start_s, stage.end_s)):
        if stage.name == IN_QUEUE:
            continue
        if stage.start_s - at > ROUNDING_S:
            stages += _gap(at, stage.start_s, queued)
            at = stage.start_s
        end_s = max(at, stage.end_s)
        stages.append(TimelineStage(stage.name, at, end_s, notes=stage.notes))
        at = end_s
    return stages


def _gap(start_s: float, end_s: float, queued: Iterable[TimelineStage]) -> list[TimelineStage]:
    """What a time without a stage was. `queued`: when the request was in the engine's queue, in their order."""
    stages, at = list[TimelineStage](), start_s
    for stage in queued:
        begin, end = max(at, stage.start_s), min(end_s, stage.end_s)
        if end - begin > ROUNDING_S:
            stages += [TimelineStage("wait", at, begin)] if begin - at > ROUNDING_S else []
            stages.append(TimelineStage(IN_QUEUE, begin if begin - at > ROUNDING_S else at, end))
            at = end
    if end_s - at > ROUNDING_S:
        return [*stages, TimelineStage("wait", at, end_s)]
    return stages


def unmeasured_s(stages: Iterable[TimelineStage], until_s: float) -> dict[str, float]:
    """Seconds until a time that nothing has measured, by their part. Without the parts that no stage is of."""
    seconds = dict[str, float]()
    for stage in stages:
        part = UNMEASURED.get(stage.name)
        if part is not None and stage.start_s < until_s:
            seconds[part] = seconds.get(part, 0.0) + min(stage.end_s, until_s) - stage.start_s
    return seconds


def bounded(stages: Sequence[TimelineStage]) -> tuple[TimelineStage, ...]:
    """At most MAX_STAGES. Where there are more, the last ones of a long prompt's steps are one stage, which says so."""
    while (surplus := len(stages) - MAX_STAGES) > 0:
        runs = [list(run) for _, run in groupby(stages, key=lambda s: (s.place, s.name in COMPUTING))]
        longest = max((run for run in runs if run[0].name in COMPUTING), key=len, default=[])
        if len(longest) < 2:
            return tuple(stages[:MAX_STAGES])
        merging = longest[-(surplus + 1) :]
        first = stages.index(merging[0])
        stages = [*stages[:first], _together(merging), *stages[first + len(merging) :]]
    return tuple(stages)


def _together(stages: Sequence[TimelineStage]) -> TimelineStage:
    steps = [stage for stage in stages if stage.name != "wait"]
    notes: dict[str, Note] = {
        "tokens": sum(int(stage.notes.get("tokens", 0)) for stage in steps),
        "steps": sum(int(stage.notes.get("steps", 1)) for stage in steps),
        "merged": len(stages),
    }
    return TimelineStage("prefill", stages[0].start_s, stages[-1].end_s, stages[0].place, notes)

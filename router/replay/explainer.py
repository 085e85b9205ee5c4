"""Explainer: looks on while a log is replayed, and collects the facts about the requests that somebody asks about.

It keeps little of the others: when each worker has reported, how it has left, and how long the prompts of requests that
wait are.
"""

from typing import Final, final

from cluster.messages.ids import RequestId, WorkerId
from cluster.messages.placement import Placement, PlacementRequest, Rejection
from cluster.messages.scheduler_events import FirstToken, PrefillDone, RequestClosed, WorkerLost
from router.load.live_workers import RETIRING_S
from router.placement.candidates import Policy
from router.recording.records import (
    Decided,
    Disconnected,
    Left,
    LogHeader,
    PausesTaken,
    PlacementAsked,
    Reported,
    ReportedWhole,
    Retired,
    Stimulus,
    Told,
)
from router.replay.comparison import told
from router.replay.facts import Facts, LeftOut, Question
from router.replay.observed_policy import Look, ObservedPolicy
from router.replay.stepper import Decision, DecisionKind, Stepper
from router.state import RouterState

MAX_FOUND: Final = 20
"""Sessions that are explained at once: one HTTP request may have several. More fills the screen; fewer leaves some
out.
"""
MAX_LOOKS: Final = 8
"""Looks at one request that are kept: the first, and the latest others. More takes memory for a request that waits for
long; fewer hides how the workers changed meanwhile.
"""
GONE_S: Final = 60.0
"""Time for which a worker that has left is named among those that could not be chosen, in seconds. Longer names workers
that nobody remembers; shorter leaves out what explains a shortage.
"""


@final
class Explainer:
    """A Watch (router/replay/replay.py)."""

    def __init__(self, wanted: str, policy: Policy) -> None:
        """`wanted`: the id of a session, or the `x-request-id` of an HTTP request."""
        self.found: dict[RequestId, Facts] = {}
        self.headers: list[LogHeader] = []
        self.header_of: dict[RequestId, LogHeader] = {}
        self.notes: list[str] = []
        self._wanted = wanted
        self.policy = ObservedPolicy(policy, self._is_wanted)
        """The policy of the states that are replayed."""
        self._state: RouterState | None = None
        self._is_exact = False
        self._now = 0.0
        self._reported_at: dict[WorkerId, float] = {}
        self._gone: dict[WorkerId, tuple[float, str]] = {}
        self._retiring: frozenset[WorkerId] = frozenset()
        self._retired_at = float("-inf")
        self._prompts: dict[RequestId, int] = {}
        """Prompt tokens of requests that wait."""

    def begins(self, header: LogHeader, state: RouterState, *, is_exact: bool) -> Stepper:
        self._state, self._is_exact = state, is_exact
        self._reported_at.clear()
        self._gone.clear()
        self._prompts.clear()
        return Stepper(state, self._decided)

    def file(self, header: LogHeader) -> None:
        self.headers.append(header)

    def inexact(self, why: str) -> None:
        self._is_exact = False
        self.notes.append(why)
        for facts in self.found.values():
            if facts.closed is None:
                facts.is_inexact = True

    def record(self, record: Stimulus, wall_s: float) -> None:
        self._now = getattr(record, "now", self._now)
        match record:
            case PlacementAsked():
                self._asked(record)
            case Decided():
                for request_id, answer in record.decisions:
                    self._answered(request_id, self._prompts.pop(request_id, 0), answer)
            case Told():
                self._told(record)
            case PausesTaken():
                for _, pause, _ in record.pauses:
                    if (facts := self.found.get(pause.request_id)) is not None:
                        facts.last.pause_asked_at = self._now
            case Left() | Disconnected() | Reported() | ReportedWhole() | Retired():
                self._of_workers(record)

    def _of_workers(self, record: Left | Disconnected | Reported | ReportedWhole | Retired) -> None:
        match record:
            case Left():
                silent_s = record.event.engine_silent_s
                why = "it left" if silent_s is None else f"its engine had not answered for {silent_s:.1f} s"
                self._lost(record.event.worker, why)
            case Disconnected():
                self._lost(record.worker, "its connection to the Scheduler ended")
            case Reported():
                self._reported(record.delta.worker)
            case ReportedWhole():
                self._reported(record.report.worker)
            case Retired():
                self._retiring, self._retired_at = frozenset(record.workers), record.now

    def _is_wanted(self, request: PlacementRequest) -> bool:
        return self._wanted in {request.request_id, request.http_request}

    def _asked(self, record: PlacementAsked) -> None:
        request = record.request
        if self._is_wanted(request) and (request.request_id in self.found or len(self.found) < MAX_FOUND):
            facts = self.found.get(request.request_id)
            if facts is None:
                header = self.header_of[request.request_id] = self.headers[-1]
                facts = self.found[request.request_id] = Facts(request_id=request.request_id, epoch=header.epoch)
            facts.is_inexact |= not self._is_exact
            assert self._state is not None
            facts.questions.append(
                Question(now=record.now, ingress=record.ingress, request=request, num_waiting=self._state.num_waiting)
            )
        if record.answer is None:
            self._prompts[request.request_id] = request.num_prompt_tokens
        else:
            self._answered(request.request_id, request.num_prompt_tokens, record.answer)

    def _answered(self, request_id: RequestId, num_prompt: int, answer: Placement | Rejection | str) -> None:
        if (facts := self.found.get(request_id)) is not None:
            facts.last.answer, facts.last.answered_at = answer, self._now
        if not isinstance(answer, Placement):
            return
        for facts in self.found.values():
            question = facts.last
            is_before_first = facts.closed is None and question.first_token_at is None
            is_neighbour = facts.request_id != request_id and question.workers & {answer.prefill, answer.decode}
            if is_before_first and is_neighbour:
                question.num_neighbours += 1
                question.neighbour_tokens += num_prompt - answer.num_hit_tokens

    def _told(self, record: Told) -> None:
        event, now = record.event, record.now
        if isinstance(event, WorkerLost):
            self._lost(event.worker, f"ingress {record.ingress} could not reach it", is_gone=False)
            return
        if isinstance(event, RequestClosed):
            self._prompts.pop(event.request_id, None)
        facts = (
            self.found.get(event.request_id) if isinstance(event, PrefillDone | FirstToken | RequestClosed) else None
        )
        if facts is None:
            return
        match event:
            case PrefillDone():
                facts.last.prefill_done_at = now
            case FirstToken():
                facts.last.first_token_at = now
            case RequestClosed():
                facts.closed, facts.closed_at = event, now

    def _lost(self, worker: WorkerId, why: str, *, is_gone: bool = True) -> None:
        if is_gone:
            self._gone[worker] = self._now, why
            self._reported_at.pop(worker, None)
        for facts in self.found.values():
            known = [(lost, how) for _, lost, how in facts.last.workers_lost]
            if facts.closed is None and worker in facts.last.workers and (worker, why) not in known:
                facts.last.workers_lost.append((self._now, worker, why))

    def _reported(self, worker: WorkerId) -> None:
        self._reported_at[worker] = self._now
        self._gone.pop(worker, None)

    def _decided(self, decision: Decision) -> None:
        for look in self.policy.take_looks():
            _keep(self.found[look.request_id].last, look)
        facts = self.found.get(RequestId(decision.subject)) if decision.kind is DecisionKind.PLACEMENT else None
        if facts is None:
            return
        question = facts.last
        question.left_out = self._left_out(question)
        if not decision.is_equal:
            question.differs = told(decision.again)

    def _left_out(self, question: Question) -> list[LeftOut]:
        """The workers that the latest look did not see, and why."""
        assert self._state is not None
        state, now = self._state, self._now
        seen = {worker.worker for worker in question.looks[-1].workers} if question.looks else set()
        left_out = [
            LeftOut(view.worker, self._why_left_out(question, view.worker, view.num_placed >= view.max_requests))
            for view in state.view(now).workers
            if view.worker not in seen
        ]
        for worker, (at, why) in self._gone.items():
            if now - at <= GONE_S and worker not in seen:
                left_out.append(LeftOut(worker, f"gone: {why} {now - at:.1f} s before"))
        return left_out

    def _why_left_out(self, question: Question, worker: WorkerId, is_full: bool) -> str:
        assert self._state is not None
        request = question.request
        if worker in request.lost:
            return "excluded: it was lost with this request"
        if worker in request.excluded:
            return "excluded: this request failed there"
        if worker in self._state.suspects.of(question.ingress, self._now):
            return f"hold: ingress {question.ingress} could not reach it lately"
        if (wrong := self._state.quarantined.of(self._now).get(worker)) is not None:
            return f"quarantine: {wrong}"
        if is_full:
            return "full: it has as many requests as it takes"
        if worker in self._retiring and self._now - self._retired_at < RETIRING_S:
            return "draining: it will be stopped soon"
        if isinstance(question.answer, Rejection) and question.answer.is_quarantined:
            return "quarantine: the request is refused without a look at the workers"
        if question.looks and question.looks[-1].is_shortlist:
            return "not looked at: the pool is large, and its turn was not now"
        age_s = self._now - self._reported_at.get(worker, self._now)
        if question.looks and request.num_engines_lost:
            return "set aside: it may have another request that an engine was lost with"
        if question.looks and age_s > 1.0:
            return f"reports are missing: the latest is {age_s:.1f} s old"
        if question.looks:
            return "full, with the requests that only its reports count"
        return "not looked at: the answer did not depend on the workers"


def _keep(question: Question, look: Look) -> None:
    question.looks.append(look)
    if len(question.looks) > MAX_LOOKS:
        del question.looks[1 : 1 - MAX_LOOKS]

"""Terms, which a session gets with its request, and the route receipt, which a session gives at its end. Pure."""

from enum import StrEnum
from typing import Protocol

import msgspec

from cluster import slo
from cluster.messages.generation import PromptTokenSources
from cluster.messages.ids import Outcome, Path, RequestId, SloClass, WorkerId
from cluster.messages.placement import Pinned, Placement, Rejection, Slo
from cluster.messages.scheduler_events import HandoffChecked
from cluster.messages.timeline import TimelineStage
from cluster.observability.trace_context import TraceContext


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms on which a request is served."""

    arrived_at: float | None = None
    """Arrival at the ingress, in seconds of the event loop's clock. None means the start of the session."""
    rendered_at: float | None = None
    """When the prompt was rendered and tokenized, on the same clock. None if that is not known."""
    slo_class: SloClass = SloClass.STANDARD
    tenant_weight: float = 1.0
    """The tenant's share of the engines' time, beside those of other tenants."""
    ttft_s: float | None = None
    """TTFT objective, in seconds, if it is tighter than the objective of the SLO class."""
    tpot_s: float | None = None
    """TPOT objective, in seconds, if it is tighter than the objective of the SLO class."""
    block_hashes: list[bytes] = []
    """Keys of the prompt's full KV blocks (cluster/engine/block_hashes.py)."""
    path: Path | None = None
    """The path of the first attempt, and of all attempts of a pinned request. None lets the Scheduler choose."""
    pinned: Pinned | None = None
    """The only workers that the request may use. None lets the Scheduler choose."""
    http_request: str = ""
    """The `x-request-id` of the HTTP request, by which its client knows the request."""
    trace: TraceContext | None = None
    """The trace of the HTTP request. None if no traces are exported."""


class AttemptEnd(StrEnum):
    """How one attempt ended. The last attempt of a request ends as the request does, by the name of its `Outcome`."""

    FINISHED = "finished"
    ABORTED = "aborted"
    REJECTED = "rejected"
    FAILED = "failed"
    PAUSED = "paused"
    """The attempt made room for requests of a higher class."""


class AttemptReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What one attempt of a request took from engines, and what of it the client has."""

    number: int
    """The place of the attempt among those of its request, from 1 on."""
    path: Path
    worker: WorkerId
    """The worker that generates."""
    prefill_worker: WorkerId | None
    """The prefill worker of path P->D. None on the other paths."""
    end: AttemptEnd
    num_prompt_tokens: int
    """Tokens of the prompt as this attempt ran it: with what earlier attempts have delivered."""
    num_delivered: int
    """Tokens that the client was given."""
    num_generated: int
    """Tokens that reached the session from the worker that generates, whether the client was given them or not."""
    num_prefill_generated: int
    """The same of the prefill worker: the token after the prompt, and one for the check of a handoff."""
    is_complete: bool
    """Whether the engines have ended all that they were asked for. If not, the engines may have generated, and counted,
    tokens that never reached the session: a worker died, or a stream was stopped before its end.
    """
    prefill_sources: PromptTokenSources | None
    """Sources of the prompt on the prefill worker of path P->D. None without a prefill."""
    sources: PromptTokenSources | None
    """Sources of the prompt on the worker that generates. None before its first token."""
    shown_sources: PromptTokenSources | None
    """The sources that the client was told. None if an earlier attempt told them, and before the first token."""
    began_s: float
    """Seconds from the arrival of the request to the placement."""
    ended_s: float
    """Seconds from the arrival of the request to the end of the attempt."""
    timeline: tuple[TimelineStage, ...] = ()
    """The parts of its time, from the wait for its placement on: 64 at most."""


class TokenGaps(msgspec.Struct, frozen=True):
    """The time between the tokens of a request (router/session/timing.py)."""

    counts: tuple[int, ...]
    """Gaps in number, by bucket of GAP_BUCKETS_S (cluster/metrics/buckets.py)."""
    total_s: float
    """All gaps together, in seconds."""


class RouteReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """Where a request ran, what was predicted, and how the request ended."""

    request_id: RequestId
    outcome: Outcome
    slo_class: SloClass
    placement: Placement | None
    """The latest placement, with its SLO, its prediction and its reason. None for a request that was never placed."""
    rejection: Rejection | None = None
    """Why the request was refused, and what its best options would have cost. None for other requests."""
    num_prompt_tokens: int
    num_output_tokens: int
    num_attempts: int
    """Number of placements."""
    num_pauses: int = 0
    """Number of times that the request was paused for requests of a higher class."""
    ttft_s: float | None
    """Time to first token, in seconds. None without a token."""
    tpot_s: float | None
    """Time per output token, in seconds. None without a second token."""
    gaps: TokenGaps | None = None
    """The time between tokens. None if all came at once."""
    queued_s: float = 0.0
    """Seconds that the request has waited for answers of the Scheduler, over all placements."""
    prefill_sources: PromptTokenSources | None
    """Sources of the prompt on the prefill worker of path P->D. None without a prefill."""
    sources: PromptTokenSources | None
    """Sources of the prompt on the worker that generated. The prompt includes tokens that earlier attempts released."""
    http_request: str = ""
    """The `x-request-id` of the HTTP request: that of its turn for a title or summary."""
    error: str | None = None
    """Code or kind of the error of a failed request. None for other requests, and after a defect of Baton."""
    is_owed: bool = False
    """Whether the request failed by its client's fault, after an engine had computed its prompt."""
    engines_lost: list[WorkerId] = []
    """Workers whose engine died or hung while the engine had the request."""
    attempts: tuple[AttemptReceipt, ...] = ()
    """The attempts in their order. Empty for a request that was never placed."""
    duration_s: float = 0.0
    """Seconds from the arrival of the request to its close."""
    unplaced_slo: Slo | None = None
    """The objectives of a request that was never placed: those of an empty prompt. None for other requests."""
    trace: TraceContext | None = None
    """The trace of the HTTP request. None if no traces are exported."""
    timeline: tuple[TimelineStage, ...] = ()
    """The parts of its time that belong to no attempt: before the first one, and the wait for a placement that was
    refused.
    """

    @property
    def path(self) -> Path | None:
        return self.placement.path if self.placement else None

    @property
    def stages(self) -> list[TimelineStage]:
        """The parts of its time and of its attempts', in the order in which they began."""
        stages = [*self.timeline, *(stage for attempt in self.attempts for stage in attempt.timeline)]
        return sorted(stages, key=lambda stage: stage.start_s)

    @property
    def result(self) -> slo.Result | None:
        """The result of the request for goodput. None if goodput does not count the request."""
        objectives = self.placement.slo if self.placement else self.unplaced_slo
        return slo.result(objectives, self.outcome, self.ttft_s, self.tpot_s, self.duration_s)

    @property
    def least_ttft_s(self) -> float | None:
        """Time to first token, in seconds. Of a client that left because the first token was late, the time that it
        had waited: the token would have come later still.
        """
        return self.duration_s if self.ttft_s is None and self.result is slo.Result.TTFT_MISSED else self.ttft_s


class RequestObserver(Protocol):
    def closed(self, receipt: RouteReceipt) -> None:
        """Called exactly once per session."""
        ...

    def verified(self, checked: HandoffChecked) -> None:
        """A handoff was checked (kvtransfer/verify.py)."""
        ...

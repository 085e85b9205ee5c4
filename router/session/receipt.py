"""Terms, which a session gets with its request, and the route receipt, which a session gives at its end."""

from typing import Protocol

import msgspec

from cluster import slo
from cluster.messages.generation import PromptTokenSources
from cluster.messages.ids import Outcome, Path, RequestId, SloClass, WorkerId
from cluster.messages.placement import Placement, Rejection
from cluster.messages.scheduler_events import HandoffChecked


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms on which a request is served."""

    arrived_at: float | None = None
    """Arrival at the ingress, in seconds of the event loop's clock. None means the start of the session."""
    slo_class: SloClass = SloClass.STANDARD
    ttft_s: float | None = None
    """TTFT objective, in seconds, if it is tighter than the objective of the SLO class."""
    tpot_s: float | None = None
    """TPOT objective, in seconds, if it is tighter than the objective of the SLO class."""
    block_hashes: list[bytes] = []
    """Keys of the prompt's full KV blocks (cluster/engine/block_hashes.py)."""
    path: Path | None = None
    """The path of the first attempt. None lets the Scheduler choose."""
    http_request: str = ""
    """The `x-request-id` of the HTTP request, by which its client knows the request."""


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
    prefill_sources: PromptTokenSources | None
    """Sources of the prompt on the prefill worker of path P->D. None without a prefill."""
    sources: PromptTokenSources | None
    """Sources of the prompt on the worker that generated. The prompt includes tokens that earlier attempts released."""
    http_request: str = ""
    """The `x-request-id` of the HTTP request. Empty for a request that Baton made by itself."""
    error: str | None = None
    """Code or kind of the error of a failed request. None for other requests, and after a defect of Baton."""
    engines_lost: list[WorkerId] = []
    """Workers whose engine died or hung while the engine had the request."""

    @property
    def path(self) -> Path | None:
        return self.placement.path if self.placement else None

    @property
    def result(self) -> slo.Result | None:
        """The result of the request for goodput. None if goodput does not count the request."""
        objectives = self.placement.slo if self.placement else None
        return slo.result(objectives, self.outcome, self.ttft_s, self.tpot_s)


class RequestObserver(Protocol):
    def closed(self, receipt: RouteReceipt) -> None:
        """Called exactly once per session."""
        ...

    def verified(self, checked: HandoffChecked) -> None:
        """A handoff was checked (kvtransfer/verify.py)."""
        ...

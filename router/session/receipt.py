"""What a session is told of its request beside the request itself, and what it says of it in the end."""

from typing import Protocol

import msgspec

from cluster import slo
from cluster.messages.generation import PromptTokenSources
from cluster.messages.ids import Outcome, Path, RequestId, SloClass, WorkerId
from cluster.messages.placement import Placement


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """How a request is to be served."""

    arrived_at: float | None = None
    """At the ingress, in seconds of the event loop's clock. None: when its session starts."""
    slo_class: SloClass = SloClass.STANDARD
    ttft_s: float | None = None
    """A tighter TTFT objective than the class's."""
    tpot_s: float | None = None
    """A tighter TPOT objective than the class's."""
    block_hashes: list[bytes] = []
    """Of the prompt's full KV blocks (cluster/engine/block_hashes.py)."""
    path: Path | None = None
    """Forces where it runs; None lets the Scheduler decide."""
    http_request: str = ""
    """The `x-request-id` of the HTTP request that asked for it, by which its client knows it."""


class RouteReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """Where a request ran, what was expected of it, and how it ended."""

    request_id: RequestId
    outcome: Outcome
    slo_class: SloClass
    placement: Placement | None
    """The last one: what its SLO was, what was predicted, and why. None when it was never placed."""
    num_prompt_tokens: int
    num_output_tokens: int
    num_attempts: int
    """Placements that it took."""
    ttft_s: float | None
    """Since it arrived; None without a token."""
    tpot_s: float | None
    """None without a second token."""
    prefill_sources: PromptTokenSources | None
    """Of the prompt on the prefill worker of path P->D."""
    sources: PromptTokenSources | None
    """Of the prompt on the worker that generated, and of what had been generated before it took over."""
    http_request: str = ""
    """The `x-request-id` of the HTTP request that asked for it; empty where Baton did by itself."""
    error: str | None = None
    """Code or kind of the error of a request that failed. None: it did not, or a defect of Baton ended it."""
    engines_lost: list[WorkerId] = []
    """Workers whose engine died or hung while it had the request."""

    @property
    def path(self) -> Path | None:
        return self.placement.path if self.placement else None

    @property
    def result(self) -> slo.Result | None:
        """As goodput counts it; None where it does not."""
        objectives = self.placement.slo if self.placement else None
        return slo.result(objectives, self.outcome, self.ttft_s, self.tpot_s)


class RequestObserver(Protocol):
    def closed(self, receipt: RouteReceipt) -> None:
        """Called exactly once per session."""
        ...

    def verified(self, prefill: WorkerId, decode: WorkerId, distance: float) -> None:
        """A handoff was checked (kvtransfer/verify.py)."""
        ...

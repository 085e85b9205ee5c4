"""What an ingress asks the Scheduler about a placement, and what the Scheduler answers."""

import msgspec

from cluster.messages.ids import Path, RequestId, SloClass, WorkerId
from cluster.messages.kv_events import BlockKey


class Slo(msgspec.Struct, frozen=True, array_like=True):
    """What one request must meet to count as goodput."""

    ttft_s: float
    """TTFT objective, in seconds."""
    tpot_s: float
    """TPOT objective, in seconds."""


class Pinned(msgspec.Struct, frozen=True, array_like=True):
    """The only workers that a request may use. None leaves a pool out."""

    prefill: WorkerId | None
    decode: WorkerId | None


class PlacementRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What placement needs to know of a request."""

    request_id: RequestId
    num_prompt_tokens: int
    block_hashes: list[BlockKey] = []
    """Hashes of the prompt's full KV blocks, chained from its start, as the engines compute them."""
    has_early_token: bool = False
    """Whether the client gets the first token from the prefill worker on path P->D."""
    num_output_tokens: int = 0
    """Tokens that the request has generated on workers that failed. They are part of the prompt."""
    max_output_tokens: int | None = None
    """Most output tokens of each sequence, `num_output_tokens` included. None if the client set no limit."""
    attempt: int = 1
    """Number of this placement among those of the request, counted from 1."""
    can_pause: bool = False
    """Whether the request can leave a worker in mid-answer, and go on later on any worker."""
    num_pauses: int = 0
    """Times that the request was paused for requests of a higher class."""
    is_paused: bool = False
    """The request is paused now: no worker has it, and its client has an open stream."""
    num_sequences: int = 1
    """Sequences of the request, `n` of the API."""
    tenant: str = ""
    tenant_weight: float = 1.0
    """The tenant's share of the engines' time, beside those of other tenants (router/admission/fairness.py)."""
    slo_class: SloClass = SloClass.STANDARD
    ttft_s: float | None = None
    """The client's own TTFT objective, which counts only if it is tighter than that of its class."""
    tpot_s: float | None = None
    """The client's own TPOT objective, which counts only if it is tighter than that of its class."""
    age_s: float = 0.0
    """Seconds since the request reached the ingress."""
    can_hand_over: bool = True
    """False if vLLM cannot take the prompt's KV from another engine (n > 1, prompt logprobs)."""
    can_verify: bool = True
    """False if a handoff of this request cannot be verified, so that a suspected pair must not take it."""
    excluded: frozenset[WorkerId] = frozenset()
    """Workers on which this request has failed."""
    lost: frozenset[WorkerId] = frozenset()
    """Those of the `excluded` workers that died, hung or could not be reached."""
    num_engines_lost: int = 0
    """Engines that died or hung one after another while they had this request, or a request with the same digest."""
    digest: bytes = b""
    """Digest of what an engine computes for the request, its tenant included. A request that is sent again has the same
    digest.
    """
    path: Path | None = None
    """The path that the request must take, from the operator's debugging header. None if placement chooses."""
    has_other_cell: bool = False
    """Another cell can be asked, so that the request need not wait here for a worker while none lives."""
    http_request: str = ""
    """The `x-request-id` of the HTTP request, by which the stimulus log can be searched."""
    pinned: Pinned | None = None
    """The workers whose answer is wanted, of a probe of quality (docs/quality.md). Such a request has a `path`, is
    refused while others wait, and tells nothing of what clients ask for. None for the request of a client.
    """


class Prediction(msgspec.Struct, frozen=True, array_like=True):
    """The expected effects of one option (router/placement/cost.py)."""

    path: Path
    prefill: WorkerId | None
    decode: WorkerId | None
    ttft_s: float
    tpot_s: float
    risk: float
    """Probability that the request misses its own SLO, in [0, 1]."""
    victims: float
    """Running requests on these workers that would miss their SLO because of this request."""
    gpu_s: float
    """Engine time that the request takes, in seconds."""
    cost: float
    """What placement minimizes: risk, victims and smaller terms."""
    engine_ttft_s: float = 0.0
    """TTFT by the engine models alone, before the correction of the path's bias (router/prediction/path_bias.py). 0 if
    the placement was not chosen by prediction.
    """
    engine_tpot_s: float = 0.0
    """TPOT by the engine models alone, for an answer of median length."""
    engine_gap_s: float = 0.0
    """Seconds by which the gap between the first and the second token is longer than later gaps, by the engine models
    alone.
    """
    future_victims: float = 0.0
    """Requests that have not arrived yet and would miss their SLO because of this request."""
    holds_first: bool = False
    """Whether the first token, which the prefill worker has, is released with the decode worker's first token."""
    waits_s: float = 0.0
    """Part of `ttft_s` before an engine begins: the request's age, and the wait for KV memory."""


class HandoffTerms(msgspec.Struct, frozen=True, array_like=True):
    """How a handoff of a pair of workers is judged (router/trust/handoff_trust.py)."""

    tolerance: float
    """Largest distance of the two engines that counts as rounding, in nats (kvtransfer/verify.py)."""
    num_strikes: int = 0
    """Wrong handoffs of the pair so far. After one, every handoff of the pair is verified."""


class Placement(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The Scheduler's answer: where a request runs."""

    path: Path
    prefill: WorkerId | None
    """The prefill worker. None on path D."""
    decode: WorkerId | None
    """The decode worker. None on path P."""
    why: str
    """Why placement chose this option, for route receipts."""
    slo: Slo | None = None
    """The SLO of the request. None if the request has none."""
    num_hit_tokens: int = 0
    """Tokens of the prompt that the worker which prefills should find in its caches."""
    predicted: Prediction | None = None
    """The prediction of the chosen option. None if it was not chosen by prediction."""
    considered: tuple[Prediction, ...] = ()
    """The best option of each path, the chosen option first."""
    holds_first_until_s: float = 0.0
    """Age of the request, in seconds, at which the prefill worker's token is released even if decoding has
    not begun.
    """
    num_engines_lost: int = 0
    """Engines that were lost with earlier requests of the same digest."""
    handoff: HandoffTerms | None = None
    """None without a handoff."""
    queued_s: float = 0.0
    """Seconds that the request has waited at the Scheduler for this answer. 0 if it was answered at once."""

    @property
    def generating(self) -> WorkerId:
        """The worker whose tokens the client gets."""
        worker = self.decode or self.prefill
        assert worker is not None
        return worker


class Rejection(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The Scheduler's answer that no worker can take the request now."""

    retry_after_s: float
    """Seconds after which the client should try again."""
    why: str
    """Why no worker can take the request, in words for the client."""
    is_overload: bool = False
    """True if the load is the reason. False if there is no worker that could take the request."""
    is_quarantined: bool = False
    """Whether engines were lost with the same request before. The client should not send it again."""
    considered: tuple[Prediction, ...] = ()
    """The best option of each path, the best one first, when the request was refused for the load."""

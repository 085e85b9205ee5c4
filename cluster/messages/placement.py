"""What an ingress asks the Scheduler, and what the Scheduler answers."""

import msgspec

from cluster.messages.ids import Path, RequestId, SloClass, WorkerId


class Slo(msgspec.Struct, frozen=True, array_like=True):
    """What one request must meet to count as goodput."""

    ttft_s: float
    tpot_s: float


class PlacementRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What placement needs to know of a request."""

    request_id: RequestId
    num_prompt_tokens: int
    block_hashes: list[bytes] = []
    """Of the prompt's full KV blocks, chained from its start, as the engines hash them."""
    has_early_token: bool = False
    """On path P->D its client gets the first token from the prefill worker."""
    num_output_tokens: int = 0
    """That it has generated before, on workers that failed; part of the prompt."""
    max_output_tokens: int | None = None
    """Of each sequence, with those."""
    num_sequences: int = 1
    tenant: str = ""
    slo_class: SloClass = SloClass.STANDARD
    ttft_s: float | None = None
    """A tighter TTFT objective than the class's."""
    tpot_s: float | None = None
    """A tighter TPOT objective than the class's."""
    age_s: float = 0.0
    """Since it arrived at the ingress."""
    can_hand_over: bool = True
    """False where vLLM cannot take the prompt's KV from another engine (n > 1, prompt logprobs)."""
    excluded: frozenset[WorkerId] = frozenset()
    """Workers that this request already failed on."""
    lost: frozenset[WorkerId] = frozenset()
    """Of these, the ones that died, hung or could not be reached."""
    num_engines_lost: int = 0
    """Engines that died or hung one after another while they had the request, or one of the same digest."""
    digest: bytes = b""
    """Of what an engine computes for the request, its tenant included. Equal for one that is sent again."""
    path: Path | None = None
    """Forces a path (operator's debugging header)."""


class Prediction(msgspec.Struct, frozen=True, array_like=True):
    """What one way to run a request is expected to bring (router/placement/cost.py)."""

    path: Path
    prefill: WorkerId | None
    decode: WorkerId | None
    ttft_s: float
    tpot_s: float
    risk: float
    """That the request misses its own SLO, in [0, 1]."""
    victims: float
    """Requests there that would miss theirs because of it."""
    gpu_s: float
    """Engine time that it takes."""
    cost: float
    """What placement minimizes: risk, victims and the smaller terms."""
    engine_ttft_s: float = 0.0
    """By the engine models alone, before the path's bias is corrected (router/prediction/path_bias.py). 0: not by
    prediction.
    """
    engine_tpot_s: float = 0.0
    """Likewise, of an answer of median length."""
    engine_gap_s: float = 0.0
    """Likewise: from the first token to the second, more than between others."""
    future_victims: float = 0.0
    """Requests yet to come that would miss their SLO because of it."""
    holds_first: bool = False
    """The first token, which the prefill worker has, is released with the decode worker's first one."""


class Placement(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The Scheduler's answer."""

    path: Path
    prefill: WorkerId | None
    """None on path D."""
    decode: WorkerId | None
    """None on path P."""
    why: str
    slo: Slo | None = None
    """What it is to meet."""
    num_hit_tokens: int = 0
    """Of the prompt, that the worker which prefills should find in its caches."""
    predicted: Prediction | None = None
    """None where it was not chosen by prediction."""
    considered: tuple[Prediction, ...] = ()
    """The best candidate of each path, the chosen one first."""
    holds_first_until_s: float = 0.0
    """Age of the request at which the prefill worker's token is released although decoding has not begun."""
    num_engines_lost: int = 0
    """Engines that were lost with requests of its digest before."""

    @property
    def generating(self) -> WorkerId:
        """The worker whose tokens the client gets."""
        worker = self.decode or self.prefill
        assert worker is not None
        return worker


class Rejection(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """No worker can take the request now."""

    retry_after_s: float
    why: str
    is_overload: bool = False
    """The load is the reason. Otherwise there is no worker that could take it."""
    is_quarantined: bool = False
    """Engines were lost with the same request before. It is not to be sent again."""

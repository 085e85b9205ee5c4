"""One open request, as the Scheduler charges it to its workers."""

from enum import IntEnum
from math import inf
from typing import final

from cluster.messages.ids import IngressId, RequestId, WorkerId
from cluster.messages.placement import Placement, PlacementRequest
from router.prediction.output_lengths import LengthHistogram


class Stage(IntEnum):
    """How far a request has come."""

    PREFILLING = 0
    HANDED_OVER = 1
    """Path P->D: the prompt is computed, and decoding has not begun."""
    DECODING = 2


@final
class Work:
    """What a placement takes of its workers, as predicted, in seconds."""

    __slots__ = ("joins_s", "prefill_s", "stall_s")

    def __init__(self, prefill_s: float, stall_s: float, joins_s: float) -> None:
        self.prefill_s = prefill_s
        """Time of the worker that computes the prompt."""
        self.stall_s = stall_s
        """Part of `prefill_s` in which no other request of that worker gets a token."""
        self.joins_s = joins_s
        """Time from now until the request starts to decode."""


@final
class Charge:
    """One open request, as it is charged to its workers."""

    __slots__ = (
        "attempt",
        "can_pause",
        "due_at",
        "first_at",
        "ingress",
        "is_pinned",
        "joins_at",
        "kv_tokens",
        "lengths",
        "most_tokens",
        "num_engines_lost",
        "num_pauses",
        "num_prompt",
        "num_sequences",
        "pause_asked_at",
        "placed_at",
        "placement",
        "prefill_s",
        "rank",
        "request_id",
        "slo_class",
        "slo_tpot_s",
        "slo_ttft_s",
        "stage",
        "staged_at",
        "start_step",
        "tenant",
    )

    def __init__(
        self,
        request: PlacementRequest,
        placement: Placement,
        lengths: LengthHistogram,
        work: Work,
        kv_tokens: int,
        due_at: float,
        ingress: IngressId | None,
        now: float,
    ) -> None:
        assert placement.slo is not None
        self.request_id: RequestId = request.request_id
        self.placement = placement
        self.slo_class = request.slo_class
        self.rank: int = request.slo_class.rank
        self.slo_ttft_s: float = placement.slo.ttft_s
        self.slo_tpot_s: float = placement.slo.tpot_s
        self.due_at = due_at
        """When the first token is due, by the TTFT objective."""
        self.lengths = lengths
        self.tenant: str = request.tenant
        self.num_engines_lost: int = request.num_engines_lost
        """Engines that were lost with the request, or with a request of its digest, before the placement."""
        self.attempt: int = request.attempt
        self.is_pinned: bool = request.pinned is not None
        """The request is a probe, from which nothing is learned of the requests of clients."""
        self.can_pause: bool = request.can_pause
        self.num_pauses: int = request.num_pauses
        self.pause_asked_at: float | None = None
        """When the ingress was asked to pause the request. None for a request that runs to its end. The charge stays
        until the ingress asks for another placement or closes the request.
        """
        self.ingress = ingress
        """The ingress process that asked for the placement. None in the simulator, where no ingress can be lost."""
        self.num_prompt: int = request.num_prompt_tokens
        most = request.max_output_tokens
        self.most_tokens: float = inf if most is None else float(most - request.num_output_tokens)
        """Tokens that each sequence may still generate."""
        self.num_sequences: int = request.num_sequences
        self.kv_tokens = kv_tokens
        """KV tokens that are reserved on the worker that generates."""
        self.prefill_s: float = work.prefill_s
        self.joins_at: float = now + work.joins_s
        """When the request is predicted to start decoding."""
        self.placed_at = now
        self.stage = Stage.PREFILLING
        self.staged_at = now
        """When the request came to its stage."""
        self.first_at = now
        """When the request started decoding."""
        self.start_step = 0.0
        """The decode clock of the worker at `first_at`."""

    @property
    def engine_s(self) -> float:
        """Time of all its workers that the request is expected to take, in seconds."""
        predicted = self.placement.predicted
        return predicted.gpu_s if predicted else self.prefill_s

    @property
    def runs_on(self) -> WorkerId:
        """The worker whose engine has the request in its present stage."""
        if self.stage is Stage.PREFILLING and self.placement.prefill is not None:
            return self.placement.prefill
        return self.placement.generating

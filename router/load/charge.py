"""One open request, as the Scheduler charges it to its workers."""

from enum import IntEnum
from math import inf
from typing import final

from cluster.messages.ids import IngressId, RequestId, SloClass, WorkerId
from cluster.messages.placement import Placement, Slo
from router.prediction.output_lengths import LengthHistogram


class Stage(IntEnum):
    """How far a request has come."""

    PREFILLING = 0
    HANDED_OVER = 1
    """Path P->D: prefilled, and not decoding yet."""
    DECODING = 2


@final
class Charge:
    """One open request, as it is charged to its workers."""

    __slots__ = (
        "first_at",
        "ingress",
        "joins_at",
        "kv_tokens",
        "lengths",
        "most_tokens",
        "num_engines_lost",
        "num_prompt",
        "num_sequences",
        "placement",
        "prefill_s",
        "rank",
        "request_id",
        "slo_class",
        "slo_tpot_s",
        "stage",
        "staged_at",
        "start_step",
        "tenant",
    )

    def __init__(
        self,
        request_id: RequestId,
        placement: Placement,
        slo: Slo,
        slo_class: SloClass,
        lengths: LengthHistogram,
        now: float,
    ) -> None:
        self.request_id = request_id
        self.placement = placement
        self.slo_class = slo_class
        self.rank: int = slo_class.rank
        self.slo_tpot_s: float = slo.tpot_s
        self.lengths = lengths
        self.tenant = ""
        self.num_engines_lost = 0
        """That were lost with it, or with one of its digest, before it was placed."""
        self.ingress: IngressId | None = None
        """The ingress process that asked for the placement. None in the simulator, where no ingress can be lost."""
        self.num_prompt = 0
        self.most_tokens = inf
        """That it may generate, of each sequence."""
        self.num_sequences = 1
        self.kv_tokens = 0
        """Reserved on the worker that generates."""
        self.prefill_s = 0.0
        """Predicted, of the worker that prefills."""
        self.joins_at = now
        """When it is predicted to start decoding."""
        self.stage = Stage.PREFILLING
        self.staged_at = now
        """When it came to its stage."""
        self.first_at = now
        """When it started decoding."""
        self.start_step = 0.0
        """The decode clock of its worker then."""

    @property
    def runs_on(self) -> WorkerId:
        """The worker whose engine has the request in its present stage."""
        if self.stage is Stage.PREFILLING and self.placement.prefill is not None:
            return self.placement.prefill
        return self.placement.generating

"""What the Scheduler has learned from verified handoffs: how far honest engines are apart, and which pairs of workers
were found wrong. All ingresses tell it, so all learn together.
"""

from typing import final

from cluster.messages.placement import HandoffTerms
from cluster.messages.reports import WorkerReport
from cluster.messages.scheduler_events import HandoffChecked
from kvtransfer.tolerance import LearnedTolerance
from router.trust.suspected_pairs import SuspectedPairs

Kinds = tuple[str, str]
"""The kinds of the prefill and the decode engine (EngineShape.kind)."""


@final
class HandoffTrust:
    __slots__ = ("_tolerances", "pairs")

    def __init__(self) -> None:
        self.pairs = SuspectedPairs()
        self._tolerances: dict[Kinds, LearnedTolerance] = {}

    def checked(
        self, event: HandoffChecked, prefill: WorkerReport | None, decode: WorkerReport | None, now: float
    ) -> None:
        """A handoff was verified. `prefill` and `decode`: reports of the workers, as far as they are known."""
        self.pairs.checked(event, now)
        if prefill is not None and decode is not None and not event.verdict.is_strike:
            self._of(prefill, decode).observe(event.distance)

    def terms(self, prefill: WorkerReport, decode: WorkerReport) -> HandoffTerms:
        """How a handoff of these workers is judged now."""
        num_strikes = self.pairs.num_strikes((prefill.worker, decode.worker))
        return HandoffTerms(self._of(prefill, decode).value, num_strikes)

    def tolerances(self) -> dict[Kinds, float]:
        """The learned tolerances in nats, for metrics."""
        return {kinds: tolerance.value for kinds, tolerance in self._tolerances.items()}

    def _of(self, prefill: WorkerReport, decode: WorkerReport) -> LearnedTolerance:
        shapes = prefill.shape, decode.shape
        kinds = shapes[0].kind, shapes[1].kind
        tolerance = self._tolerances.get(kinds)
        if tolerance is None:
            coarse = shapes[0].rounds_coarsely or shapes[1].rounds_coarsely
            tolerance = self._tolerances[kinds] = LearnedTolerance(rounds_coarsely=coarse)
        return tolerance

"""RecentFailures: what kinds of requests were considered and not admitted within the last moment.

To price a request takes most of the time of a decision. Where a request that has to be answered now needs no less than
one that was priced a moment ago and was not admitted, its price is known well enough, and it is refused without.
"""

from typing import Final, final

from cluster.messages.ids import SloClass, WorkerId
from cluster.messages.placement import PlacementRequest
from router.placement.candidates import Candidates, Choice
from router.placement.placement_input import PlacementInput
from router.prefixes.narrowing import Hit

FRESH_S: Final = 0.02
"""Time for which a failure counts, in seconds. Higher refuses requests for which room has come up since; lower prices
more requests while the service is full. It is also the time by which a request may be younger than one that failed.
"""
MOST_KINDS: Final = 1024
"""Kinds that are remembered. Higher costs memory; lower prices more requests where clients ask for much that is
different.
"""

Kind = tuple[SloClass, int, int, int, int, int, bool, float, float]
"""The class; the standing of the tenant; the number of bits of the prompt's tokens, of those that no worker caches, and
of the answer's; the number of sequences; whether the request can be handed over; and its own objectives (0 for none).
"""


@final
class Need:
    """What a request needs of the workers, as far as it is known before anything is priced."""

    __slots__ = ("_hits", "_tokens_per_block", "age_s", "is_late", "kind", "num_prompt", "num_uncached")

    def __init__(
        self,
        request: PlacementRequest,
        hits: dict[WorkerId, Hit],
        usual_output: float,
        age_s: float,
        standing: int,
        *,
        is_late: bool,
    ) -> None:
        """`hits`: what each worker caches of the prompt; `usual_output`: tokens that such answers have; `standing`: 0
        for a tenant within its share, and more for one that is refused what others get; `is_late`: the request has
        waited until its deadline.
        """
        self.is_late = is_late
        self.num_prompt: int = request.num_prompt_tokens
        self._hits = hits
        num_blocks = len(request.block_hashes)
        self._tokens_per_block = self.num_prompt / num_blocks if num_blocks else 0.0
        most = max([hit.num_blocks for hit in hits.values()], default=0)
        self.num_uncached = self.num_prompt - most * self._tokens_per_block
        """Tokens of the prompt that every worker would have to compute."""
        self.age_s = age_s
        self.kind: Kind = (
            request.slo_class,
            standing,
            self.num_prompt.bit_length(),
            int(self.num_uncached).bit_length(),
            int(usual_output).bit_length(),
            request.num_sequences,
            request.can_hand_over,
            request.ttft_s or 0.0,
            request.tpot_s or 0.0,
        )

    def covers(self, other: "Need") -> bool:
        """Whether a request that needs `other`, of the same kind, fails where one that needs this has failed: because
        it needs no less memory, and as much computation on every worker, and is as late.
        """
        is_later = other.is_late or self.age_s <= other.age_s + FRESH_S
        if not is_later or self.num_prompt > other.num_prompt:
            return False
        if self.num_prompt <= other.num_uncached:
            return True
        return all(self._uncached_on(worker) <= other._uncached_on(worker) for worker in other._hits)

    def _uncached_on(self, worker: WorkerId) -> float:
        hit = self._hits.get(worker)
        return self.num_prompt - (hit.num_blocks * self._tokens_per_block if hit is not None else 0.0)


@final
class Failure:
    """A request that was considered, and not admitted."""

    __slots__ = ("at", "candidates", "choice", "need", "patience_s", "placement_input")

    def __init__(
        self, need: Need, placement_input: PlacementInput, candidates: Candidates, choice: Choice, patience_s: float
    ) -> None:
        self.need = need
        self.placement_input = placement_input
        self.candidates = candidates
        self.choice = choice
        self.patience_s = patience_s
        """Time that the request had left, in seconds."""
        self.at = placement_input.now


@final
class RecentFailures:
    __slots__ = ("_by_kind", "_noted_at")

    def __init__(self) -> None:
        self._by_kind: dict[Kind, Failure] = {}
        """The least need of each kind that was not met lately."""
        self._noted_at = float("-inf")
        """When the last failure was noted."""

    def __len__(self) -> int:
        return len(self._by_kind)

    def has_fresh(self, now: float) -> bool:
        """Whether `like` may find one. Failures that are all too old are dropped, with the workers that they name."""
        if self._by_kind and now - self._noted_at > FRESH_S:
            self._by_kind.clear()
        return bool(self._by_kind)

    def note(self, failure: Failure) -> None:
        self._noted_at = failure.at
        known = self._by_kind.get(failure.need.kind)
        if known is not None and failure.at - known.at <= FRESH_S and not failure.need.covers(known.need):
            return
        if known is None and len(self._by_kind) >= MOST_KINDS:
            self._by_kind.clear()
        self._by_kind[failure.need.kind] = failure

    def like(self, need: Need, now: float) -> Failure | None:
        """A request that needed no more, and was not admitted just now."""
        known = self._by_kind.get(need.kind)
        if known is None or now - known.at > FRESH_S or not known.need.covers(need):
            return None
        return known

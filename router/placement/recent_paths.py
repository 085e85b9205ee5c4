"""RecentPaths: why the requests that were placed lately were handed over, or were not, for operators (`baton why`)."""

from collections import deque
from itertools import islice
from typing import Final, final

from cluster.messages.ids import Path
from cluster.messages.operations import PathCount, PathReason
from router.load.worker_state import WorkerState
from router.placement.candidates import Candidates, Choice
from router.placement.placement_input import PlacementInput

MOST_KEPT: Final = 512
"""Placements that are remembered, in number. Higher shows reasons that are over; lower shows chance."""
LOOKS: Final = 8
"""Workers of each pool that are looked at for a proved link, where no handoff was priced. Higher costs time for each
such placement; lower takes a cluster with few links for one without.
"""


@final
class _Placed:
    __slots__ = ("extra_cost", "extra_ttft_s", "num_new", "num_prompt", "reason")

    def __init__(
        self, reason: PathReason, num_prompt: int, num_new: int, extra_ttft_s: float, extra_cost: float
    ) -> None:
        self.reason = reason
        self.num_prompt = num_prompt
        self.num_new = num_new
        self.extra_ttft_s = extra_ttft_s
        self.extra_cost = extra_cost


@final
class RecentPaths:
    __slots__ = ("_placed",)

    def __init__(self) -> None:
        self._placed: deque[_Placed] = deque(maxlen=MOST_KEPT)

    def note(self, placement_input: PlacementInput, candidates: Candidates, choice: Choice) -> None:
        """A request is placed that does not name its workers."""
        extra_ttft_s = extra_cost = 0.0
        for other in choice.considered[1:]:
            if other.path is Path.PREFILL_DECODE:
                extra_ttft_s = other.ttft_s - choice.considered[0].ttft_s
                extra_cost = other.cost - choice.considered[0].cost
        prefilling = choice.prefill or choice.decode
        num_hit = placement_input.hit(prefilling) if prefilling is not None else 0
        num_prompt, reason = placement_input.num_prompt, reason_of(placement_input, candidates, choice)
        self._placed.append(_Placed(reason, num_prompt, num_prompt - num_hit, extra_ttft_s, extra_cost))

    def counts(self) -> list[PathCount]:
        """The remembered placements by reason, the most frequent reason first."""
        by_reason: dict[PathReason, list[_Placed]] = {}
        for placed in self._placed:
            by_reason.setdefault(placed.reason, []).append(placed)
        return sorted([_count(reason, several) for reason, several in by_reason.items()], key=_frequent_first)


def reason_of(placement_input: PlacementInput, candidates: Candidates, choice: Choice) -> PathReason:
    request = placement_input.request
    if request.path is not None:
        return PathReason.ASKED
    if choice.path is Path.PREFILL_DECODE:
        return PathReason.HANDED_OVER
    if not request.can_hand_over:
        return PathReason.NOT_POSSIBLE
    if request.max_output_tokens == 1:
        return PathReason.ONE_TOKEN
    if not candidates.prefills:
        return PathReason.NO_PREFILL_WORKER
    if not candidates.decodes:
        return PathReason.NO_DECODE_WORKER
    if choice.prediction is None:
        return PathReason.BLIND
    if candidates.wish is not None:
        return PathReason.NOT_PROVED
    if any(other.path is Path.PREFILL_DECODE for other in choice.considered):
        return PathReason.DEARER
    return _without_a_priced_pair(candidates)


def _without_a_priced_pair(candidates: Candidates) -> PathReason:
    """No handoff was priced. Numbered by case:

    1. No worker that was looked at has a proved link.
    2. The pairs with a link hand nothing over, because they have handed over wrongly.
    3. Some pair could hand over, and its prefill worker decodes.
    """
    linked = list[tuple[WorkerState, WorkerState]]()
    for decode in islice(candidates.decodes, LOOKS):
        linked += [(one, decode) for one in islice(candidates.prefills, LOOKS) if one.worker in decode.links]
    if not linked:
        return PathReason.NOT_PROVED
    if all(candidates.is_barred(prefill, decode) for prefill, decode in linked):
        return PathReason.DISTRUSTED
    return PathReason.DECODES_ITSELF


def _count(reason: PathReason, several: list[_Placed]) -> PathCount:
    num = len(several)
    return PathCount(
        reason=reason,
        num=num,
        mean_prompt_tokens=sum([placed.num_prompt for placed in several]) / num,
        mean_new_tokens=sum([placed.num_new for placed in several]) / num,
        mean_extra_ttft_s=sum([placed.extra_ttft_s for placed in several]) / num,
        mean_extra_cost=sum([placed.extra_cost for placed in several]) / num,
    )


def _frequent_first(count: PathCount) -> int:
    return -count.num

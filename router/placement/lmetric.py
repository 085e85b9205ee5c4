"""LMetric: (prompt tokens that a worker has yet to compute, the new request's among them) x (its requests), smallest
first. It needs the Scheduler's own accounting alone and no weights, so it decides when reports are stale.
"""

from collections.abc import Sequence
from typing import Final

from cluster.messages.ids import Path
from router.load.worker_state import WorkerState
from router.placement.candidates import Candidates, Choice
from router.placement.placement_input import PlacementInput
from router.prediction.latency import LatencyModels

LOCAL_TOKENS: Final = 512
"""A decode worker computes so many prompt tokens itself sooner than a prefill worker hands them over."""


def choose(placement_input: PlacementInput, candidates: Candidates, models: LatencyModels) -> Choice | None:
    decode = _least(placement_input, candidates.decodes)
    if decode is not None and candidates.may_hand_over and not _stays(placement_input, candidates, decode):
        prefill = _least(
            placement_input, [prefill for prefill in candidates.prefills if candidates.can_pair(prefill, decode)]
        )
        if prefill is not None:
            return Choice(Path.PREFILL_DECODE, prefill, decode, "least LMetric")
    if decode is not None and candidates.may_stay:
        return Choice(Path.DECODE, None, decode, "least LMetric")
    alone = _least(placement_input, candidates.prefills)
    if alone is not None and candidates.may_prefill_alone and not (candidates.may_stay and candidates.decodes):
        return Choice(Path.PREFILL, alone, None, "least LMetric, and no decode worker")
    return None


def _stays(placement_input: PlacementInput, candidates: Candidates, decode: WorkerState) -> bool:
    return candidates.may_stay and placement_input.num_prompt - placement_input.hit(decode) <= LOCAL_TOKENS


def _least(placement_input: PlacementInput, workers: Sequence[WorkerState]) -> WorkerState | None:
    return min(workers, key=lambda worker: score(placement_input, worker), default=None)


def score(placement_input: PlacementInput, worker: WorkerState) -> float:
    num_queued = sum(charge.num_prompt for charge in worker.prefilling.values())
    return (num_queued + placement_input.num_prompt - placement_input.hit(worker)) * (
        worker.num_placed + worker.running.num_unknown + 1
    )

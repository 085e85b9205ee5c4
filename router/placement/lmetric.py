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


def choose(ask: PlacementInput, candidates: Candidates, models: LatencyModels) -> Choice | None:
    decode = _least(ask, candidates.decodes)
    if decode is not None and candidates.may_hand_over and not _stays(ask, candidates, decode):
        prefill = _least(ask, [prefill for prefill in candidates.prefills if candidates.can_pair(prefill, decode)])
        if prefill is not None:
            return Choice(Path.PREFILL_DECODE, prefill, decode, "least LMetric")
    if decode is not None and candidates.may_stay:
        return Choice(Path.DECODE, None, decode, "least LMetric")
    alone = _least(ask, candidates.prefills)
    if alone is not None and candidates.may_prefill_alone and not (candidates.may_stay and candidates.decodes):
        return Choice(Path.PREFILL, alone, None, "least LMetric, and no decode worker")
    return None


def _stays(ask: PlacementInput, candidates: Candidates, decode: WorkerState) -> bool:
    return candidates.may_stay and ask.num_prompt - ask.hit(decode) <= LOCAL_TOKENS


def _least(ask: PlacementInput, workers: Sequence[WorkerState]) -> WorkerState | None:
    return min(workers, key=lambda worker: score(ask, worker), default=None)


def score(ask: PlacementInput, worker: WorkerState) -> float:
    num_queued = sum(charge.num_prompt for charge in worker.prefilling.values())
    return (num_queued + ask.num_prompt - ask.hit(worker)) * (worker.num_placed + worker.num_unknown + 1)

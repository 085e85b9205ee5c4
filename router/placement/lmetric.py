"""LMetric: the policy for stale reports, since it needs nothing but the Scheduler's own accounting.

The score of a worker is the product of two numbers: prompt tokens that the worker has yet to compute, with those of the
new request, and requests on the worker. The worker with the lowest score is chosen.
"""

from collections.abc import Sequence
from typing import Final

from cluster.messages.ids import Path
from router.load.worker_state import WorkerState
from router.placement.candidates import Candidates, Choice
from router.placement.placement_input import PlacementInput
from router.prediction.learned_latency import LatencyModels

LOCAL_TOKENS: Final = 512
"""Prompt tokens up to which a decode worker computes the prompt itself. Higher stalls running requests for longer;
lower pays for handoffs of short prompts.
"""


def choose(placement_input: PlacementInput, candidates: Candidates, models: LatencyModels) -> Choice | None:
    """Returns None if no worker can take the request."""
    decode = _least(placement_input, candidates.decodes)
    if decode is not None and candidates.may_hand_over and not _stays(placement_input, candidates, decode):
        prefill = _least(placement_input, candidates.prefills)
        if prefill is not None and not candidates.can_pair(prefill, decode):
            if not candidates.is_barred(prefill, decode):
                candidates.wish = prefill.worker, decode.worker
            linked = [prefill for prefill in candidates.prefills if candidates.can_pair(prefill, decode)]
            prefill = _least(placement_input, linked)
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
    return tokens_to_compute(placement_input, worker) * (worker.num_placed + worker.running.num_unknown + 1)


def tokens_to_compute(placement_input: PlacementInput, worker: WorkerState) -> int:
    """Prompt tokens that the worker has yet to compute, with those of the new request."""
    queued = worker.prompts.charges.values()
    num_queued = sum(charge.num_prompt - charge.placement.num_hit_tokens for charge in queued)
    return num_queued + placement_input.num_prompt - placement_input.hit(worker)

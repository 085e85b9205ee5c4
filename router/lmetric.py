"""LMetric: (prompt tokens that a worker has yet to compute, the new request's among them) x (its requests), smallest
first. It needs the Scheduler's own accounting alone and no weights, so it decides when reports are stale.
"""

from cluster.types import Path
from router.choice import Candidates, Choice
from router.cost import Ask
from router.fleet import WorkerState
from router.latency import LatencyModels

LOCAL_TOKENS = 512
"""A decode worker computes so many prompt tokens itself sooner than a prefill worker hands them over."""


def choose(ask: Ask, candidates: Candidates, models: LatencyModels) -> Choice | None:
    decode = min(candidates.decodes, key=lambda worker: score(ask, worker), default=None)
    if decode is None or not (candidates.may_stay or candidates.may_hand_over):
        return None
    if candidates.may_hand_over and (not candidates.may_stay or ask.num_prompt - ask.hit(decode) > LOCAL_TOKENS):
        pairs = [prefill for prefill in candidates.prefills if candidates.can_pair(prefill, decode)]
        if pairs:
            prefill = min(pairs, key=lambda worker: score(ask, worker))
            return Choice(Path.PREFILL_DECODE, prefill, decode, "least LMetric")
    return Choice(Path.DECODE, None, decode, "least LMetric") if candidates.may_stay else None


def score(ask: Ask, worker: WorkerState) -> float:
    num_queued = sum(charge.num_prompt for charge in worker.prefilling.values())
    return (num_queued + ask.num_prompt - ask.hit(worker)) * (worker.num_placed + worker.num_unknown + 1)

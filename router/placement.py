"""Which workers a request runs on: the way with the least expected cost (router/cost.py) among those that can be taken.

Candidates are path P->D on the best few pairs whose link is proved, path D on the best few decode workers, and path P
where it pays: one token is wanted, no decode worker can be reached, or a prefill worker is idle and the answer short. A
worker that holds much of the prompt is always among them, and keeps the conversation unless another is clearly better.
Where half of the workers have not reported for a while the predictions are not worth much: LMetric decides
(router/lmetric.py).
"""

from collections.abc import Sequence
from heapq import nsmallest
from operator import attrgetter

from cluster.types import Path, Prediction, WorkerId
from router import lmetric
from router.choice import Candidates, Choice
from router.cost import Ask, DecodePart, PrefillPart, alone, hand_over, prefill_s
from router.fleet import WorkerState
from router.latency import LatencyModels

NUM_PREFILL_CANDIDATES = 3
NUM_DECODE_CANDIDATES = 4
STICKINESS = 0.05
"""By so much cost another worker must be better than the one that has most of the prompt."""
STALE_SHARE = 0.5
SHORT_OUTPUT_TOKENS = 2.0

def goodput(ask: Ask, candidates: Candidates, models: LatencyModels) -> Choice | None:
    """The policy of production."""
    workers = [*candidates.prefills, *candidates.decodes]
    if workers and sum(w.is_stale(ask.now) for w in workers) > STALE_SHARE * len(workers):
        return lmetric.choose(ask, candidates, models)
    prefills = _best_prefills(ask, candidates) if candidates.may_hand_over or candidates.may_prefill_alone else []
    decodes = _best_decodes(ask, candidates)
    ways = _ways(ask, candidates, prefills, decodes, models)
    if not ways:
        return None
    best = min(ways, key=_cost)
    holder = max(candidates.decodes, key=ask.hit, default=None)
    if holder is not None and ask.hit(holder) and best.decode != holder.worker:
        there = [way for way in ways if way.decode == holder.worker]
        sticky = min(there, key=_cost, default=best)
        best = sticky if sticky.cost <= best.cost + STICKINESS else best
    return choice_of(best, ways, {w.worker: w for w in workers})


def choice_of(best: Prediction, ways: Sequence[Prediction], workers: dict[WorkerId, WorkerState]) -> Choice:
    others = [min((w for w in ways if w.path is path), key=_cost, default=None) for path in Path if path is not best.path]
    considered = (best, *(way for way in others if way is not None))
    return Choice(
        best.path,
        workers[best.prefill] if best.prefill else None,
        workers[best.decode] if best.decode else None,
        f"least expected cost of {len(ways)} ways",
        best,
        considered,
    )


def _ways(
    ask: Ask, candidates: Candidates, prefills: list[PrefillPart], decodes: list[DecodePart], models: LatencyModels
) -> list[Prediction]:
    ways = []
    if candidates.may_hand_over:
        for decode in decodes:
            for prefill in prefills:
                if candidates.can_pair(prefill.worker, decode.worker):
                    ways.append(hand_over(ask, prefill, decode, models))
    if candidates.may_stay:
        ways += [alone(ask, decode, models) for decode in decodes]
    if candidates.may_prefill_alone and prefills and _prefill_alone_pays(ask, candidates, prefills):
        ways += [alone(ask, DecodePart(ask, part.worker), models, Path.PREFILL) for part in prefills]
    return ways


def _prefill_alone_pays(ask: Ask, candidates: Candidates, prefills: list[PrefillPart]) -> bool:
    """A prefill worker's steps are long: who decodes there waits for other prompts at every token."""
    if not (candidates.may_stay or candidates.may_hand_over) or not candidates.decodes:
        return True
    if ask.request.max_output_tokens == 1:
        return True
    is_idle = any(not part.worker.charges for part in prefills)
    return is_idle and ask.outputs[2] <= SHORT_OUTPUT_TOKENS


def _best_prefills(ask: Ask, candidates: Candidates) -> list[PrefillPart]:
    """Those that have it computed first. Most workers hold nothing of a prompt: for these one prediction does."""
    seconds: dict[tuple[int, int], float] = {}
    parts = []
    for worker in candidates.prefills:
        key = (id(worker.model), ask.hit(worker))
        if key not in seconds or key[1]:
            seconds[key] = prefill_s(ask, worker)
        parts.append(PrefillPart(worker, seconds[key], worker.queue_s(ask.now) + seconds[key]))
    return nsmallest(NUM_PREFILL_CANDIDATES, parts, key=attrgetter("done_s"))


def _best_decodes(ask: Ask, candidates: Candidates) -> list[DecodePart]:
    workers = list(candidates.decodes)
    if len(workers) > NUM_DECODE_CANDIDATES:
        holder = max(workers, key=ask.hit)
        workers.sort(key=lambda worker: _decode_load(ask, worker))
        best = workers[:NUM_DECODE_CANDIDATES]
        workers = best if holder in best or not ask.hit(holder) else [*best, holder]
    return [DecodePart(ask, worker) for worker in workers]


def _decode_load(ask: Ask, worker: WorkerState) -> float:
    """Cheap: in what part of its objectives the request finds the worker busy."""
    is_full = worker.kv_reserved + ask.kv_tokens > worker.kv_capacity
    expected = worker.num_decoding + len(worker.inbound)
    step_s = worker.step_s(ask.now) * (expected + 1.0) / (worker.num_decoding + 1.0)
    return is_full + step_s / ask.slo.tpot_s + worker.queue_s(ask.now) / ask.slo.ttft_s


_cost = attrgetter("cost")

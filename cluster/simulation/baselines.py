"""Other routers' rules, to compare with: our renditions, over the same accounting of the workers as our own policy, so
that they differ in the rule alone.

The first seven serve a pool of workers that prefill and decode (all of them decode workers here); the `pd_` ones have a
prefill pool too.
"""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cluster.messages.ids import Path
from router.load.worker_state import WorkerState
from router.placement.candidates import Candidates, Choice, Policy
from router.placement.goodput import goodput
from router.placement.lmetric import score
from router.placement.placement_input import PlacementInput
from router.placement.work import prefill_s
from router.prediction.latency import LatencyModels

AFFINITY_SHARE = 0.3
"""Of the prompt, that a worker must hold to be preferred for it."""
THRESHOLD_TOKENS = 512


class Baseline(NamedTuple):
    make: Callable[[int], Policy]
    """From a seed."""
    has_prefill_pool: bool
    has_admission: bool = False
    """Our own queue and early refusal."""


def _fixed(policy: Policy) -> Callable[[int], Policy]:
    return lambda seed: policy


def round_robin(ask: PlacementInput, candidates: Candidates, models: LatencyModels) -> Choice | None:
    return _stay(candidates.decodes[0]) if candidates.decodes else None


def power_of_two(seed: int) -> Policy:
    """The one with fewer requests of two at random: Ray Serve's default."""
    chance = random.Random(seed)

    def choose(ask: PlacementInput, candidates: Candidates, models: LatencyModels) -> Choice | None:
        if not candidates.decodes:
            return None
        two = chance.sample(candidates.decodes, min(2, len(candidates.decodes)))
        return _stay(min(two, key=_num_requests))

    return choose


def least_requests(ask: PlacementInput, candidates: Candidates, models: LatencyModels) -> Choice | None:
    return _stay(min(candidates.decodes, key=_num_requests)) if candidates.decodes else None


def prefix_affinity(ask: PlacementInput, candidates: Candidates, models: LatencyModels) -> Choice | None:
    """The best match, if it is one; else the fewest requests."""
    if not candidates.decodes:
        return None
    best = max(candidates.decodes, key=ask.hit)
    is_match = ask.hit(best) >= AFFINITY_SHARE * ask.num_prompt
    return _stay(best if is_match else min(candidates.decodes, key=_num_requests))


def lmetric(ask: PlacementInput, candidates: Candidates, models: LatencyModels) -> Choice | None:
    return _stay(min(candidates.decodes, key=lambda worker: score(ask, worker))) if candidates.decodes else None


def min_ttft(ask: PlacementInput, candidates: Candidates, models: LatencyModels) -> Choice | None:
    if not candidates.decodes:
        return None
    return _stay(min(candidates.decodes, key=lambda worker: worker.queue_s(ask.now) + _beside_decodes_s(ask, worker)))


def pd_round_robin(ask: PlacementInput, candidates: Candidates, models: LatencyModels) -> Choice | None:
    return _pair(candidates, candidates.prefills, candidates.decodes)


def pd_least(ask: PlacementInput, candidates: Candidates, models: LatencyModels) -> Choice | None:
    """The fewest prompts queued, the fewest requests."""
    prefills = sorted(candidates.prefills, key=lambda worker: len(worker.prefilling))
    return _pair(candidates, prefills, sorted(candidates.decodes, key=_num_requests))


def pd_mooncake(ask: PlacementInput, candidates: Candidates, models: LatencyModels) -> Choice | None:
    """Mooncake's Algorithm 1 with local caches: least predicted TTFT, then least predicted TBT; refused where either
    exceeds its objective.
    """
    prefills = sorted(candidates.prefills, key=lambda worker: worker.queue_s(ask.now) + prefill_s(ask, worker))
    decodes = sorted(candidates.decodes, key=lambda worker: _next_step_s(ask, worker))
    choice = _pair(candidates, prefills, decodes)
    if choice is None or choice.prefill is None or choice.decode is None:
        return None
    ttft_s = ask.age_s + choice.prefill.queue_s(ask.now) + prefill_s(ask, choice.prefill)
    if ttft_s > ask.slo.ttft_s or _next_step_s(ask, choice.decode) > ask.slo.tpot_s:
        return None
    return choice


def pd_threshold(ask: PlacementInput, candidates: Candidates, models: LatencyModels) -> Choice | None:
    """llm-d's decider: a decode worker first, by prefix and requests; prefill elsewhere where it misses 512 tokens."""
    if not candidates.decodes:
        return None
    decode = min(
        candidates.decodes, key=lambda worker: (_missing(ask, worker) > THRESHOLD_TOKENS, _num_requests(worker))
    )
    if _missing(ask, decode) <= THRESHOLD_TOKENS:
        return _stay(decode)
    prefills = sorted(candidates.prefills, key=lambda worker: worker.queue_s(ask.now) + prefill_s(ask, worker))
    return _pair(candidates, prefills, [decode])


BASELINES = {
    "round_robin": Baseline(_fixed(round_robin), has_prefill_pool=False),
    "power_of_two": Baseline(power_of_two, has_prefill_pool=False),
    "least_requests": Baseline(_fixed(least_requests), has_prefill_pool=False),
    "prefix_affinity": Baseline(_fixed(prefix_affinity), has_prefill_pool=False),
    "lmetric": Baseline(_fixed(lmetric), has_prefill_pool=False),
    "min_ttft": Baseline(_fixed(min_ttft), has_prefill_pool=False),
    "pd_round_robin": Baseline(_fixed(pd_round_robin), has_prefill_pool=True),
    "pd_least": Baseline(_fixed(pd_least), has_prefill_pool=True),
    "pd_mooncake": Baseline(_fixed(pd_mooncake), has_prefill_pool=True),
    "pd_threshold": Baseline(_fixed(pd_threshold), has_prefill_pool=True),
    "goodput": Baseline(_fixed(goodput), has_prefill_pool=True, has_admission=True),
}


def _stay(worker: WorkerState) -> Choice:
    return Choice(Path.DECODE, None, worker, "the rule's choice")


def _pair(candidates: Candidates, prefills: Sequence[WorkerState], decodes: Sequence[WorkerState]) -> Choice | None:
    """The first pair, in order of preference, that is connected."""
    for prefill in prefills:
        for decode in decodes:
            if candidates.can_pair(prefill, decode):
                return Choice(Path.PREFILL_DECODE, prefill, decode, "the rule's choice")
    return None


def _num_requests(worker: WorkerState) -> int:
    return worker.num_placed


def _missing(ask: PlacementInput, worker: WorkerState) -> int:
    return ask.num_prompt - ask.hit(worker)


def _beside_decodes_s(ask: PlacementInput, worker: WorkerState) -> float:
    hit, batch = ask.hit(worker), worker.running.num
    most = worker.max_step_tokens
    return worker.model.times.prefill_s(
        ask.num_prompt - hit, hit, most, batch, int(worker.running.context_tokens(ask.now))
    )


def _next_step_s(ask: PlacementInput, worker: WorkerState) -> float:
    """Of a step once the request and all who are expected have joined."""
    batch = worker.running.num + len(worker.inbound) + 1
    context = (
        worker.running.context_tokens(ask.now)
        + sum(charge.num_prompt for charge in worker.inbound.values())
        + ask.num_prompt
    )
    return worker.model.times.decode_s(batch, int(context))

"""The placement rules of other routers, for comparison with Baton's own policy.

Each baseline is a rendition of a published rule over Baton's own accounting of the workers. So baselines and Baton's
policy differ in the rule alone. What each is run with, the table `BASELINES` says: one pool of workers that prefill and
decode (decode workers here) or two, Baton's own queue and refusals or none, Baton's engines or vLLM's.

Names that begin with `goodput` are Baton's policy, whole or without a part, and no rivals. In other names `_admission`
stands for Baton's queue and refusals, and `_filter` for these and a choice among the workers on which they would take
the request. `_priority` and `_partial` stand for engines with these options of vLLM, `_deadline` for engines with
Baton's order of prompts alone, and `_steps` for Baton's engines (`Engines`). So the part of a gain that each makes can
be told from the part that the choice of workers makes.
"""

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from cluster.messages.ids import Path
from cluster.simulation.engine.engine_setting import Engines
from cluster.simulation.kv_cost import KvCost
from router.admission.verdict import Verdict, judge
from router.load.worker_state import WorkerState
from router.placement.candidates import Candidates, Choice, Policy
from router.placement.cost import alone, hand_over
from router.placement.goodput import goodput
from router.placement.lmetric import score
from router.placement.placement_input import PlacementInput
from router.placement.work import DecodePart, prefill_part, prefill_s
from router.prediction.learned_latency import LatencyModels

AFFINITY_SHARE = 0.3
"""Least share of a prompt that a worker must cache before `prefix_affinity` prefers that worker. Lower follows hits
that save little; higher ignores hits that save much.
"""
THRESHOLD_TOKENS = 512
"""Most prompt tokens that a decode worker may compute itself under `pd_threshold`. Lower hands over short remainders;
higher delays the decoding requests by longer prompts.
"""


class Baseline(NamedTuple):
    """A policy, and what it is run with."""

    make: Callable[[int], Policy]
    """Makes the policy from a seed."""
    has_prefill_pool: bool
    has_admission: bool = False
    """Whether the policy runs behind Baton's own queue and early refusals."""
    engines: Engines = Engines.FIRST_COME
    preempts: bool = True
    """Whether running requests pause for requests of higher classes. Only behind Baton's own queue."""

    @property
    def has_step_size(self) -> bool:
        """Whether the most tokens of a step are a setting. Baton's engines choose them."""
        return not self.engines.value.has_short_steps


def _fixed(policy: Policy) -> Callable[[int], Policy]:
    return lambda seed: policy


def round_robin(placement_input: PlacementInput, candidates: Candidates, models: LatencyModels) -> Choice | None:
    """Take the workers in turn: each list of candidates begins with another worker."""
    return _stay(candidates.decodes[0]) if candidates.decodes else None


def power_of_two(seed: int) -> Policy:
    """Choose two workers at random, and take the one with fewer requests, which is Ray Serve's default rule."""
    chance = random.Random(seed)

    def choose(placement_input: PlacementInput, candidates: Candidates, models: LatencyModels) -> Choice | None:
        if not candidates.decodes:
            return None
        two = chance.sample(candidates.decodes, min(2, len(candidates.decodes)))
        return _stay(min(two, key=_num_requests))

    return choose


def least_requests(placement_input: PlacementInput, candidates: Candidates, models: LatencyModels) -> Choice | None:
    return _stay(min(candidates.decodes, key=_num_requests)) if candidates.decodes else None


def prefix_affinity(placement_input: PlacementInput, candidates: Candidates, models: LatencyModels) -> Choice | None:
    """Take the worker that caches most of the prompt if it caches AFFINITY_SHARE of it, else the fewest requests."""
    if not candidates.decodes:
        return None
    best = max(candidates.decodes, key=placement_input.hit)
    is_match = placement_input.hit(best) >= AFFINITY_SHARE * placement_input.num_prompt
    return _stay(best if is_match else min(candidates.decodes, key=_num_requests))


def lmetric(placement_input: PlacementInput, candidates: Candidates, models: LatencyModels) -> Choice | None:
    """Take the worker with the least product of prompt tokens to compute and requests (router/placement/lmetric.py)."""
    return (
        _stay(min(candidates.decodes, key=lambda worker: score(placement_input, worker)))
        if candidates.decodes
        else None
    )


def min_ttft(placement_input: PlacementInput, candidates: Candidates, models: LatencyModels) -> Choice | None:
    """Take the worker with the least predicted TTFT: the prompts that come before this one, then this one."""
    if not candidates.decodes:
        return None
    due_at, now = placement_input.due_at, placement_input.now
    return _stay(
        min(
            candidates.decodes,
            key=lambda worker: worker.prompts.seconds_before(due_at, now) + prefill_s(placement_input, worker),
        )
    )


def pd_round_robin(placement_input: PlacementInput, candidates: Candidates, models: LatencyModels) -> Choice | None:
    return _pair(candidates, candidates.prefills, candidates.decodes)


def pd_least(placement_input: PlacementInput, candidates: Candidates, models: LatencyModels) -> Choice | None:
    """Take the prefill worker with the fewest queued prompts and the decode worker with the fewest requests."""
    prefills = sorted(candidates.prefills, key=lambda worker: len(worker.prompts))
    return _pair(candidates, prefills, sorted(candidates.decodes, key=_num_requests))


def pd_mooncake(placement_input: PlacementInput, candidates: Candidates, models: LatencyModels) -> Choice | None:
    """Mooncake's Algorithm 1 with local caches: the prefill worker with the least predicted TTFT and the decode worker
    with the least predicted time between tokens. The request is refused if either prediction exceeds its objective.
    """
    prefills = sorted(
        candidates.prefills,
        key=lambda worker: worker.prompts.seconds(placement_input.now) + prefill_s(placement_input, worker),
    )
    decodes = sorted(candidates.decodes, key=lambda worker: _next_step_s(placement_input, worker))
    choice = _pair(candidates, prefills, decodes)
    if choice is None or choice.prefill is None or choice.decode is None:
        return None
    ttft_s = (
        placement_input.age_s
        + choice.prefill.prompts.seconds(placement_input.now)
        + prefill_s(placement_input, choice.prefill)
    )
    if ttft_s > placement_input.slo.ttft_s or _next_step_s(placement_input, choice.decode) > placement_input.slo.tpot_s:
        return None
    return choice


def pd_threshold(placement_input: PlacementInput, candidates: Candidates, models: LatencyModels) -> Choice | None:
    """llm-d's decider: choose a decode worker by prefix and by requests. A prefill worker computes the prompt if the
    decode worker misses more than THRESHOLD_TOKENS of it.
    """
    if not candidates.decodes:
        return None
    decode = min(
        candidates.decodes,
        key=lambda worker: (_missing(placement_input, worker) > THRESHOLD_TOKENS, _num_requests(worker)),
    )
    if _missing(placement_input, decode) <= THRESHOLD_TOKENS:
        return _stay(decode)
    prefills = sorted(
        candidates.prefills,
        key=lambda worker: worker.prompts.seconds(placement_input.now) + prefill_s(placement_input, worker),
    )
    return _pair(candidates, prefills, [decode])


def min_ttft_refuses(placement_input: PlacementInput, candidates: Candidates, models: LatencyModels) -> Choice | None:
    """As `min_ttft`, and the request is refused if the predicted TTFT exceeds its objective: the admission of
    Mooncake's Algorithm 1 for workers that take whole requests.
    """
    choice = min_ttft(placement_input, candidates, models)
    if choice is None or choice.decode is None:
        return None
    queue_s = choice.decode.prompts.seconds_before(placement_input.due_at, placement_input.now)
    ttft_s = placement_input.age_s + queue_s + prefill_s(placement_input, choice.decode)
    return choice if ttft_s <= placement_input.slo.ttft_s else None


def with_admission(rule: Policy) -> Policy:
    """The rule behind Baton's queue and refusals. Its choice is priced, so that admission has a prediction to judge."""
    return partial(_priced, rule)


def with_filter(rule: Policy) -> Policy:
    """As `with_admission`, and the rule chooses among the workers on which admission would take the request. If it
    would take it on none, the rule's first choice is judged.
    """

    def choose(placement_input: PlacementInput, candidates: Candidates, models: LatencyModels) -> Choice | None:
        first: Choice | None = None
        left = candidates
        while (choice := _priced(rule, placement_input, left, models)) is not None:
            if judge(placement_input, choice, 0.0, is_contended=False) is Verdict.ADMIT:
                return choice
            first = first or choice
            left = _without(left, choice.decode)
        return first

    return choose


def _priced(rule: Policy, placement_input: PlacementInput, left: Candidates, models: LatencyModels) -> Choice | None:
    choice = rule(placement_input, left, models)
    if choice is None or choice.decode is None:
        return None
    decode = DecodePart(placement_input, choice.decode)
    if choice.prefill is None:
        option = alone(placement_input, decode, models)
    else:
        option = hand_over(placement_input, prefill_part(placement_input, choice.prefill), decode, models)
    prediction = option.prediction()
    return Choice(choice.path, choice.prefill, choice.decode, choice.why, option.work, prediction, (prediction,))


def _without(candidates: Candidates, refused: WorkerState | None) -> Candidates:
    decodes = [worker for worker in candidates.decodes if worker is not refused]
    may_hand_over, stale_share, barred = candidates.may_hand_over, candidates.stale_share, candidates.barred
    return Candidates(None, candidates.prefills, decodes, stale_share, barred, may_hand_over)


def _admission(rule: Policy, engines: Engines = Engines.FIRST_COME) -> Baseline:
    """The rule in one pool behind Baton's admission, which judges its first choice."""
    return Baseline(_fixed(with_admission(rule)), has_prefill_pool=False, has_admission=True, engines=engines)


def _filter(rule: Policy, engines: Engines = Engines.FIRST_COME) -> Baseline:
    """The rule in one pool, among the workers on which Baton's admission would take the request."""
    return Baseline(_fixed(with_filter(rule)), has_prefill_pool=False, has_admission=True, engines=engines)


def _ours(
    engines: Engines, *, has_prefill_pool: bool = True, has_admission: bool = True, preempts: bool = True
) -> Baseline:
    """Baton's policy, which prices its choices itself."""
    return Baseline(_fixed(goodput), has_prefill_pool, has_admission, engines, preempts)


BASELINES = {
    "round_robin": Baseline(_fixed(round_robin), has_prefill_pool=False),
    "power_of_two": Baseline(power_of_two, has_prefill_pool=False),
    "least_requests": Baseline(_fixed(least_requests), has_prefill_pool=False),
    "prefix_affinity": Baseline(_fixed(prefix_affinity), has_prefill_pool=False),
    "lmetric": Baseline(_fixed(lmetric), has_prefill_pool=False),
    "min_ttft": Baseline(_fixed(min_ttft), has_prefill_pool=False),
    "kv_cost": Baseline(lambda seed: KvCost(), has_prefill_pool=False),
    "min_ttft_refuses": Baseline(_fixed(min_ttft_refuses), has_prefill_pool=False),
    "pd_round_robin": Baseline(_fixed(pd_round_robin), has_prefill_pool=True),
    "pd_least": Baseline(_fixed(pd_least), has_prefill_pool=True),
    "pd_mooncake": Baseline(_fixed(pd_mooncake), has_prefill_pool=True),
    "pd_threshold": Baseline(_fixed(pd_threshold), has_prefill_pool=True),
    "lmetric_admission": _admission(lmetric),
    "min_ttft_admission": _admission(min_ttft),
    "pd_threshold_admission": Baseline(_fixed(with_admission(pd_threshold)), has_prefill_pool=True, has_admission=True),
    "lmetric_filter": _filter(lmetric),
    "kv_cost_filter": Baseline(lambda seed: with_filter(KvCost()), has_prefill_pool=False, has_admission=True),
    "min_ttft_filter": _filter(min_ttft),
    "lmetric_filter_priority": _filter(lmetric, Engines.PRIORITY),
    "min_ttft_filter_priority": _filter(min_ttft, Engines.PRIORITY),
    "min_ttft_filter_partial": _filter(min_ttft, Engines.PARTIAL),
    "min_ttft_filter_deadline": _filter(min_ttft, Engines.DEADLINE),
    "lmetric_admission_steps": _admission(lmetric, Engines.BATON),
    "min_ttft_admission_steps": _admission(min_ttft, Engines.BATON),
    "lmetric_filter_steps": _filter(lmetric, Engines.BATON),
    "min_ttft_filter_steps": _filter(min_ttft, Engines.BATON),
    "goodput_no_admission": _ours(Engines.BATON, has_admission=False),
    "goodput_no_steps": _ours(Engines.FIRST_COME, has_prefill_pool=False),
    "goodput_no_bound": _ours(Engines.DEADLINE, has_prefill_pool=False),
    "goodput_no_preemption": _ours(Engines.BATON, preempts=False),
    "goodput": _ours(Engines.BATON),
}


def _stay(worker: WorkerState) -> Choice:
    return Choice(Path.DECODE, None, worker, "the rule's choice")


def _pair(candidates: Candidates, prefills: Sequence[WorkerState], decodes: Sequence[WorkerState]) -> Choice | None:
    """Take the first pair that may hand over. Both lists are in order of preference."""
    for prefill in prefills:
        for decode in decodes:
            if candidates.can_pair(prefill, decode):
                return Choice(Path.PREFILL_DECODE, prefill, decode, "the rule's choice")
    return None


def _num_requests(worker: WorkerState) -> int:
    return worker.num_placed


def _missing(placement_input: PlacementInput, worker: WorkerState) -> int:
    return placement_input.num_prompt - placement_input.hit(worker)


def _next_step_s(placement_input: PlacementInput, worker: WorkerState) -> float:
    """Seconds of a decode step once the new request and all inbound requests have joined."""
    batch = worker.running.num + len(worker.inbound) + 1
    context = worker.running.context_tokens(placement_input.now) + worker.inbound_prompt + placement_input.num_prompt
    return worker.model.times.decode_s(batch, int(context))

"""The policy of production: the option with the least expected cost (router/placement/cost.py) among those that are
priced.

1. The pools are leanings where a prompt is computed about as fast beside decodes as alone (MOST_SLOWDOWN). A whole
   request (path D or P) is priced on the best few workers of both pools, and a prefill worker that decodes hands
   nothing over: its memory and its steps belong to the requests that it decodes.
2. Elsewhere, and where steps are long beside decodes (without `EngineShape.has_short_steps`), prefill workers keep to
   prompts. Path P is priced where it pays: one token is wanted, no decode worker can be reached, a prefill worker is
   idle and the answer is short, or the best other option does harm.
3. Path P->D is priced on the best few pairs with a proved link. Where the best pair has none and would be better than
   all options, it becomes a wish (router/links/link_plan.py).
4. Of the workers that could decode, one that holds the most of the prompt is always priced; so is one for the P of path
   P->D. Computing a prompt that others hold, and leaving a worker that holds it, have a cost. So a conversation stays
   unless another worker is clearly better, and a beginning that several workers hold keeps nothing to one of them.
5. Where half of the workers have missed reports the predictions are not worth much: LMetric decides
   (router/placement/lmetric.py).
"""

from math import inf
from typing import Final, final

from cluster.messages.ids import Path, Pool
from cluster.messages.placement import Prediction
from router.load.worker_state import WorkerState
from router.placement import lmetric
from router.placement.candidates import Candidates, Choice
from router.placement.cost import alone, hand_over
from router.placement.least_crowded import least_crowded
from router.placement.option import Option
from router.placement.placement_input import PlacementInput, holder_of
from router.placement.work import DecodePart, PrefillPart, prefill_s, slowdown_beside_decodes
from router.prediction.learned_latency import LatencyModel, LatencyModels
from router.prefixes.narrowing import Hit
from router.trust.suspected_pairs import Pair

NUM_PREFILL_CANDIDATES: Final = 3
"""Prefill workers that are priced for a request. Higher costs time for each placement; lower misses the cheapest."""
STALE_SHARE: Final = 0.5
"""Share of stale workers above which LMetric decides. Higher trusts predictions from old reports; lower gives up the
predictions that are still good.
"""
SHORT_OUTPUT_TOKENS: Final = 2.0
"""Length up to which an answer is short enough for an idle prefill worker, in tokens. Higher has prefill workers decode
for longer, while prompts wait; lower pays for handoffs of short answers.
"""
HARMLESS: Final = 0.02
"""Victims below which the least crowded worker is good enough, and more crowded ones are not priced. Higher
misses better workers; lower prices more options.
"""
HARMFUL: Final = 0.1
"""Risk and victims of the best option above which path P is priced as well. Higher leaves prefill workers idle while
decode workers are overloaded; lower has prefill workers decode, which slows their prompts.
"""
MOST_RISK_ALONE: Final = 0.5
"""Risk up to which a prefill worker that keeps to prompts takes a whole request that other workers could take. Higher
fills such workers with requests that are late anyway; lower refuses requests that would have been good.
"""
MOST_SLOWDOWN: Final = 2.5
"""How many times faster prompts are computed alone than beside decodes, up to which prefill workers take whole requests
as decode workers do. Higher slows the prompts of engines whose decode steps come close to the TPOT objective; lower
has prefill workers hand over prompts that they could decode at no loss. In simulated runs of a mixture of experts,
workers that decode serve more up to 2, and workers that keep to prompts serve more from 3.5 on.
"""


def goodput(placement_input: PlacementInput, candidates: Candidates, models: LatencyModels) -> Choice | None:
    """Returns None if no worker can take the request."""
    if candidates.stale_share > STALE_SHARE:
        return lmetric.choose(placement_input, candidates, models)
    options, best = _weighed(placement_input, candidates, models)
    if best is None:
        return None
    considered = options.considered(best)
    why = f"least expected cost of {len(options.priced)} options"
    return Choice(best.path, best.prefill, best.decode, why, best.work, considered[0], considered)


def options_of(placement_input: PlacementInput, candidates: Candidates, models: LatencyModels) -> list[Prediction]:
    """All options that `goodput` prices, for an explanation of its choice."""
    return [option.prediction() for option in _weighed(placement_input, candidates, models)[0].priced]


def _weighed(
    placement_input: PlacementInput, candidates: Candidates, models: LatencyModels
) -> tuple["_Options", Option | None]:
    slowdown = _slowdown(placement_input, candidates)
    are_leanings = slowdown <= MOST_SLOWDOWN
    several = candidates.prefills if candidates.may_hand_over or candidates.may_prefill_alone else []
    prefills = _best_prefills(placement_input, candidates, several, are_leanings=are_leanings)
    slowdown = 1.0 if are_leanings else slowdown
    several = candidates.decodes
    if are_leanings and candidates.may_prefill_alone:
        several = [*several, *[worker for worker in candidates.prefills if worker.has_short_steps]]
    holder, crowd = holder_of(placement_input, several), least_crowded(placement_input, several)
    left_share = placement_input.share_held(holder) if holder is not None and candidates.may_stay else 0.0
    options = _Options(placement_input, candidates, prefills, models, slowdown, left_share, are_leanings=are_leanings)
    for part in _best_decodes(placement_input, crowd, holder):
        options.add(part)
    if not options.has_decode:
        for worker in least_crowded(placement_input, candidates.decodes)[:1]:
            options.add(DecodePart(placement_input, worker))
    options.add_later_prefills()
    best = options.best()
    candidates.wish = options.wish(best)
    if _may_prefill_alone(placement_input, candidates, prefills, best, are_leanings=are_leanings):
        is_last = best is None or placement_input.request.max_output_tokens == 1
        options.add_prefills_alone(1.0 if is_last else MOST_RISK_ALONE)
        best = options.best()
    return options, best


@final
class _Options:
    """The options of one request that have been priced."""

    __slots__ = (
        "_are_leanings",
        "_best_pair",
        "_candidates",
        "_first",
        "_input",
        "_left_share",
        "_may_hand_over",
        "_models",
        "_pairing",
        "_prefills",
        "_slowdown",
        "_unproved",
        "has_decode",
        "priced",
    )

    def __init__(
        self,
        placement_input: PlacementInput,
        candidates: Candidates,
        prefills: list[PrefillPart],
        models: LatencyModels,
        slowdown: float,
        left_share: float,
        *,
        are_leanings: bool,
    ) -> None:
        """`slowdown`: of the prompts of a prefill worker that takes a whole request. `left_share`: share of the prompt
        that a worker holds which could take the whole request.
        """
        self._input, self._candidates, self._prefills, self._models = placement_input, candidates, prefills, models
        self._slowdown, self._left_share, self._are_leanings = slowdown, left_share, are_leanings
        self._may_hand_over = candidates.may_hand_over
        if candidates.may_prefill_alone and placement_input.request.max_output_tokens == 1:
            self._may_hand_over = False  # path P ends with the first token
        self._best_pair: Option | None = None
        self._pairing: DecodePart | None = None
        """The decode worker of the best pair."""
        self._first = 0
        """The place of the best pair's prefill worker in `_prefills`."""
        self._unproved: tuple[PrefillPart, DecodePart] | None = None
        """The soonest prefill worker and the least crowded decode worker whose link is not proved."""
        self.has_decode = False
        """A decode worker has been priced."""
        self.priced: list[Option] = []

    def add(self, part: DecodePart) -> None:
        """Price the worker alone, and a decode worker also with a prefill worker."""
        if part.worker.pool is Pool.PREFILL:
            self.priced.append(self._alone_on_prefill(part))
            return
        self.has_decode = True
        if self._may_hand_over:
            self._add_pair(part)
        if self._candidates.may_stay:
            self.priced.append(alone(self._input, part, self._models))

    def _add_pair(self, decode: DecodePart) -> None:
        """Price the decode worker with the soonest prefill worker that is linked to it, or with one that holds most."""
        for number, prefill in enumerate(self._prefills[:NUM_PREFILL_CANDIDATES]):
            if self._candidates.can_pair(prefill.worker, decode.worker):
                option = self._hand_over(prefill, decode)
                if self._best_pair is None or option.cost < self._best_pair.cost:
                    self._best_pair, self._pairing, self._first = option, decode, number
                return
            if self._unproved is None and not self._candidates.is_barred(prefill.worker, decode.worker):
                self._unproved = prefill, decode
        if self._unproved is not None and self._unproved[1] is decode:
            linked = [
                worker for worker in self._candidates.all_prefills if self._candidates.can_pair(worker, decode.worker)
            ]
            for prefill in _best_prefills(self._input, self._candidates, linked, are_leanings=self._are_leanings)[:1]:
                self._hand_over(prefill, decode)
        for holder in self._prefills[NUM_PREFILL_CANDIDATES:]:
            if self._candidates.can_pair(holder.worker, decode.worker):
                self._hand_over(holder, decode)

    def wish(self, best: Option | None) -> Pair | None:
        """The pair that would be better than the best option, had its link been proved."""
        if self._unproved is None:
            return None
        prefill, decode = self._unproved
        option = hand_over(self._input, prefill, decode, self._models, self._left_share)
        if best is not None and option.cost >= best.cost:
            return None
        return prefill.worker.worker, decode.worker.worker

    def add_later_prefills(self) -> None:
        """Price the decode worker of the best pair with prefill workers that compute the prompt later."""
        decode = self._pairing
        if decode is None:
            return
        sooner = self._prefills[self._first]
        for later in self._prefills[self._first + 1 :]:
            may_be_better = _may_be_better(later, sooner, decode, self._input.now)
            if may_be_better and self._candidates.can_pair(later.worker, decode.worker):
                self._hand_over(later, decode)

    def add_prefills_alone(self, most_risk: float) -> None:
        for part in self._prefills:
            option = self._alone_on_prefill(DecodePart(self._input, part.worker))
            if option.risk <= most_risk:
                self.priced.append(option)
            if option.risk + option.victims < HARMLESS:
                return

    def best(self) -> Option | None:
        """The option to take."""
        best, least = None, inf
        for option in self.priced:
            if option.cost < least:
                best, least = option, option.cost
        return best

    def considered(self, best: Option) -> tuple[Prediction, ...]:
        """The best option, and the cheapest of each path that the best option does not take."""
        others: dict[Path, Option] = {}
        for option in self.priced:
            if option.path is best.path:
                continue
            other = others.get(option.path)
            if other is None or option.cost < other.cost:
                others[option.path] = option
        return best.prediction(), *[option.prediction() for option in others.values()]

    def _alone_on_prefill(self, part: DecodePart) -> Option:
        """Price path P."""
        decodes = self._candidates.decodes
        peer = decodes[0] if decodes else None
        return alone(self._input, part, self._models, is_prefill=True, peer=peer, slowdown=self._slowdown)

    def _hand_over(self, prefill: PrefillPart, decode: DecodePart) -> Option:
        option = hand_over(self._input, prefill, decode, self._models, self._left_share)
        self.priced.append(option)
        return option


def _slowdown(placement_input: PlacementInput, candidates: Candidates) -> float:
    """How many times slower prefill workers compute prompts while they decode. 1 where nobody else can decode, or all
    requests are whole.
    """
    if not (candidates.may_hand_over and candidates.prefills and candidates.decodes):
        return 1.0
    return slowdown_beside_decodes(placement_input, candidates.prefills[0])


def _may_be_better(later: PrefillPart, sooner: PrefillPart, decode: DecodePart, now: float) -> bool:
    """The later prefill worker takes less engine time, or disturbs no running request, or its link is free sooner."""
    if later.seconds < sooner.seconds or sooner.worker.running.charges:
        return True
    return max(sooner.worker.link_free_at, decode.worker.link_free_at) > now + sooner.done_s


def _may_prefill_alone(
    placement_input: PlacementInput,
    candidates: Candidates,
    prefills: list[PrefillPart],
    other: Option | None,
    *,
    are_leanings: bool,
) -> bool:
    """Whether path P is priced for a prefill worker that keeps to prompts. `other`: the best option so far. A request
    that decodes on such a worker waits for other prompts at every token, or slows them.
    """
    if not prefills or not candidates.may_prefill_alone:
        return False
    if other is None or placement_input.request.max_output_tokens == 1:
        return True
    if are_leanings and prefills[0].worker.has_short_steps:
        return False
    if other.risk + other.victims > HARMFUL:
        return True
    return placement_input.outputs[2] <= SHORT_OUTPUT_TOKENS and any(not part.worker.charges for part in prefills)


def _best_prefills(
    placement_input: PlacementInput, candidates: Candidates, workers: list[WorkerState], *, are_leanings: bool
) -> list[PrefillPart]:
    """Those of several prefill workers that compute the prompt first, and one that holds most of it. Workers of one
    kind and pace that hold equally much of the prompt take equally long. A worker that takes whole requests hands
    nothing over while it decodes, where the request may stay on one worker.
    """
    now, hits = placement_input.now, placement_input.hits
    best = _BestPrefills()
    alone_s, without_s = 0.0, -1.0
    kind: LatencyModel | None = None
    pace = 0.0
    found: Hit | None = None
    for worker in workers:
        if are_leanings and candidates.may_stay and worker.has_short_steps and (worker.running.num or worker.inbound):
            continue
        hit = hits.get(worker.worker)
        if worker.num_crowded:
            done_s = seconds = prefill_s(placement_input, worker)
        elif worker.model.kind is not kind or worker.model.pace != pace:
            kind, pace, found, without_s = worker.model.kind, worker.model.pace, hit, -1.0
            done_s = seconds = alone_s = prefill_s(placement_input, worker)
        elif hit is not found:
            if found is None:
                without_s = alone_s
            found = hit
            alone_s = without_s if hit is None and without_s >= 0.0 else prefill_s(placement_input, worker)
            done_s = seconds = alone_s
        else:
            done_s = seconds = alone_s
        if worker.prompts.charges:
            done_s += worker.prompts.seconds_before(placement_input.due_at, now)
        best.add(worker, hit, seconds, done_s)
    return best.parts()


@final
class _BestPrefills:
    """The NUM_PREFILL_CANDIDATES prefill workers that have the prompt computed first, and one that holds most of it."""

    __slots__ = ("_holder", "_last_s", "_most", "_soonest")

    def __init__(self) -> None:
        self._soonest: list[PrefillPart] = []
        self._last_s = inf
        self._holder: PrefillPart | None = None
        """Of the workers that hold most of the prompt, the soonest."""
        self._most = 0
        """Blocks that this worker holds."""

    def add(self, worker: WorkerState, hit: Hit | None, seconds: float, done_s: float) -> None:
        holder = self._holder
        if hit is not None and (
            hit.num_blocks > self._most
            or (hit.num_blocks == self._most and holder is not None and done_s < holder.done_s)
        ):
            self._holder, self._most = PrefillPart(worker, seconds, done_s), hit.num_blocks
        if done_s >= self._last_s:
            return
        best = self._soonest
        place = len(best)
        while place and best[place - 1].done_s > done_s:
            place -= 1
        best.insert(place, PrefillPart(worker, seconds, done_s))
        if len(best) > NUM_PREFILL_CANDIDATES:
            best.pop()
        if len(best) == NUM_PREFILL_CANDIDATES:
            self._last_s = best[-1].done_s

    def parts(self) -> list[PrefillPart]:
        """The soonest first. One that is not among them comes last."""
        holder = self._holder
        if holder is None or any(part.worker is holder.worker for part in self._soonest):
            return self._soonest
        return [*self._soonest, holder]


def _best_decodes(
    placement_input: PlacementInput, crowd: list[WorkerState], holder: WorkerState | None
) -> list[DecodePart]:
    """The least crowded workers, and the one that holds most of the prompt. Where the least crowded one disturbs no
    request and has no prompt in its queue, workers that are more crowded and hold no more of the prompt are not priced.
    """
    if not crowd:
        return []
    first = DecodePart(placement_input, crowd[0])
    others = crowd[1:] if holder is None or holder in crowd else [*crowd[1:], holder]
    if first.join_victims < HARMLESS and not first.worker.prompts.charges and not first.missing:
        others = [worker for worker in others if placement_input.hit(worker) > first.hit]
    return [first, *[DecodePart(placement_input, worker) for worker in others]]


def least_prefill_s(placement_input: PlacementInput, candidates: Candidates) -> float:
    """Time that the prompt takes, without a queue, on a worker that holds most of it."""
    workers = [*candidates.prefills, *candidates.decodes]
    if not workers:
        return 0.0
    return prefill_s(placement_input, holder_of(placement_input, workers) or workers[0])


def is_hopeless(placement_input: PlacementInput, candidates: Candidates) -> bool:
    """Whether no worker can meet the SLO even if the worker has nothing else to do."""
    for worker in (*candidates.prefills, *candidates.decodes):
        times, hit = worker.model.times, placement_input.hit(worker)
        alone_s = times.prefill_s(placement_input.num_prompt - hit, hit, worker.max_step_tokens)
        step_s = times.decode_s(placement_input.num_sequences, placement_input.num_prompt)
        if alone_s < placement_input.slo_ttft_s and step_s < placement_input.slo_tpot_s:
            return False
    return True

"""Placer: chooses the workers of a request by the policy, and charges the request to them."""

from typing import Final, final

from cluster.messages.ids import IngressId, SloClass, WorkerId
from cluster.messages.placement import PlacementRequest, Slo
from cluster.messages.scheduler_events import RequestClosed
from cluster.slo import SloConfig
from router.load.charge import Charge
from router.load.charges import Charges
from router.load.decode_slack import class_weight
from router.load.live_workers import LiveWorkers, WorkersByPool
from router.load.prompt_demand import Demand
from router.placement.candidates import SHORTLIST, Candidates, Choice, Policy, Usable, candidates_of
from router.placement.commit import commit
from router.placement.goodput import STALE_SHARE
from router.placement.kv_price import kv_price
from router.placement.placement_input import USUAL, Later, Others, PlacementInput
from router.placement.recent_paths import RecentPaths
from router.placement.time_price import time_price
from router.prediction.decaying import moving_median
from router.prediction.output_lengths import OutputLengths
from router.prefixes.narrowing import Hit

USUAL_SHARE: Final = 0.02
"""Share of itself by which one request moves the usual objectives of its class. Higher follows chance; lower learns
late that traffic has changed.
"""
LEARNED_PER_S: Final = 500.0
"""Finished requests per second whose predictions are compared with how they came out, in the mean. Higher costs the
Scheduler some 15 us for each; lower learns later what predictions lack.
"""
MOST_LEARNABLE: Final = 100.0
"""Requests that are learnt from at once after few have finished. Higher costs more time at once; lower learns less of
requests that finish together.
"""
GOOD_RISK: Final = 0.1
"""Risk and victims of the best worker of a shortlist up to which no other workers are looked at. Higher places worse in
large pools under load; lower looks at all workers of a large pool for more of the requests.
"""

Arrivals = list[tuple[SloClass, float]]
"""Requests per second that are expected next of each class that sends any."""


@final
class Placer:
    def __init__(self, slo: SloConfig, policy: Policy, workers: LiveWorkers, charges: Charges) -> None:
        self._slo = slo
        self._policy = policy
        self._workers = workers
        self.paths = RecentPaths()
        """Why recent requests were handed over or not, for operators."""
        self._charges = charges
        self._lengths = OutputLengths()
        self._priced: WorkersByPool | None = None
        """The sorted workers that `_kv_price` and `_demand` were computed with: they are as old as those lists."""
        self._learnable = MOST_LEARNABLE
        """Requests that may be learnt from at the time `_learned_at`."""
        self._learned_at = 0.0
        self._num_busy = 0
        """Workers that have requests, counted with the sorted workers `_busy_of`: as old as those in a large pool."""
        self._busy_of: WorkersByPool | None = None
        self._kv_price = 0.0
        self._demand: Demand = []
        self._usual: dict[SloClass, Slo] = {}
        """What the recent requests of each class were promised."""

    def hits_of(self, request: PlacementRequest, now: float) -> dict[WorkerId, Hit]:
        """What each worker caches of the prompt."""
        return self._workers.index.longest(request.block_hashes, now)

    def usual_output(self, request: PlacementRequest) -> float:
        """Tokens that the answer usually has."""
        usual = self._lengths.of((request.tenant, request.slo_class)).quantile(USUAL)
        most = request.max_output_tokens
        return usual if most is None else min(usual, float(most))

    def input_of(
        self, request: PlacementRequest, hits: dict[WorkerId, Hit], age_s: float, arrivals: Arrivals, now: float
    ) -> PlacementInput:
        """`hits`: of `hits_of`; `age_s`: seconds since the request reached the ingress."""
        objective = self._slo.of(request.slo_class)
        isolated_s = self._isolated_prefill_s(request.num_prompt_tokens, now) if objective.ttft_per_prefill else 0.0
        slo = objective.resolve(isolated_s, request.ttft_s, request.tpot_s)
        lengths = self._lengths.of((request.tenant, request.slo_class))
        others = self._others(request, slo, arrivals, now)
        return PlacementInput(request, slo, hits, lengths, age_s, others, now)

    def find(
        self, placement_input: PlacementInput, ingress: IngressId | None, *, leaves_a_place: bool = False
    ) -> tuple[Candidates, Choice | None]:
        """The workers that may take a request, and the choice among them. None if no worker can take the request. In
        large pools only some of the workers are looked at, unless the best of them is not good enough. A draining
        worker is looked at if no other worker of either pool can take the request.
        `leaves_a_place`: it fills no worker, for the sake of requests that have waited for too long.
        """
        candidates = self._candidates_of(placement_input, ingress, leaves_a_place, are_few=True)
        choice = self.choose(placement_input, candidates)
        is_blind = candidates.stale_share > STALE_SHARE  # nothing is predicted, and a look at all costs most
        if candidates.is_shortlist and not is_blind and not _is_good(choice):
            candidates = self._candidates_of(placement_input, ingress, leaves_a_place, are_few=False)
            choice = self.choose(placement_input, candidates)
        if choice is None and self._workers.drains.workers:
            candidates = self._candidates_of(placement_input, ingress, leaves_a_place, are_few=False, may_drain=True)
            choice = self.choose(placement_input, candidates)
        return candidates, choice

    def choose(self, placement_input: PlacementInput, candidates: Candidates) -> Choice | None:
        """Returns None if no worker can take the request."""
        choice = self._policy(placement_input, candidates, self._workers.models)
        if candidates.wish is not None:
            self._workers.links.wish(*candidates.wish, placement_input.now)
        return choice

    def commit(self, placement_input: PlacementInput, choice: Choice, ingress: IngressId | None) -> Charge:
        """Charge the request to the chosen workers."""
        charge = commit(placement_input, choice, self._workers, ingress)
        self._charges.add(charge, placement_input.now)
        self.answered(placement_input)
        self._workers.placed(charge, placement_input.request.block_hashes, placement_input.now)
        return charge

    def answered(self, placement_input: PlacementInput) -> None:
        """The request was placed or refused: learn what requests of its class are promised."""
        if placement_input.request.pinned is not None:
            return
        slo, slo_class = placement_input.slo, placement_input.request.slo_class
        usual = self._usual.get(slo_class)
        self._usual[slo_class] = Slo(
            moving_median(usual.ttft_s if usual else None, slo.ttft_s, USUAL_SHARE),
            moving_median(usual.tpot_s if usual else None, slo.tpot_s, USUAL_SHARE),
        )

    def learn(self, charge: Charge, event: RequestClosed, now: float) -> None:
        """Compare what was predicted for a finished request with how it came out."""
        if event.num_output_tokens is None or charge.is_pinned:
            return
        key = (charge.tenant, charge.slo_class)
        self._lengths.add(key, round(event.num_output_tokens / charge.num_sequences))
        predicted = charge.placement.predicted
        if predicted is None or charge.attempt > 1:  # the times are those of all attempts
            return
        self._learnable = min(MOST_LEARNABLE, self._learnable + LEARNED_PER_S * max(0.0, now - self._learned_at))
        self._learned_at = max(now, self._learned_at)
        if self._learnable >= 1.0:
            self._learnable -= 1.0
            self._workers.models.bias.observe(predicted, event.ttft_s, event.tpot_s, event.num_output_tokens)

    def _candidates_of(
        self,
        placement_input: PlacementInput,
        ingress: IngressId | None,
        leaves_a_place: bool,
        *,
        are_few: bool,
        may_drain: bool = False,
    ) -> Candidates:
        workers, now = self._workers, placement_input.now
        unreachable = workers.suspects.of(ingress, now)
        by_pool, barred = workers.by_pool(now), workers.trust.pairs.barred(placement_input.request.can_verify, now)
        num_placed = workers.num_placed
        usable = Usable(placement_input, by_pool, unreachable, num_placed, leaves_a_place=leaves_a_place)
        return candidates_of(placement_input, usable, by_pool, barred, num_placed, are_few=are_few, may_drain=may_drain)

    def _others(self, request: PlacementRequest, own_slo: Slo, arrivals: Arrivals, now: float) -> Others:
        later = list[Later]()
        for slo_class, per_s in arrivals:
            weight = class_weight(slo_class.rank, request.slo_class.rank)
            usual = self._usual.get(slo_class)
            later.append(Later(per_s, weight, usual or own_slo))
        by_pool = self._workers.by_pool(now)
        prefills, decodes = by_pool.prefills, by_pool.decodes
        if by_pool is not self._priced:
            self._priced = by_pool
            self._kv_price, self._demand = kv_price([*prefills, *decodes]), self._charges.prompt_demand(now)
        num_workers = max(1, len(prefills) + len(decodes))
        prompt_use, usual_prompt_s = self._workers.prompt_use(now), self._charges.usual_prompt_s(now)
        if self._busy_of is not by_pool or num_workers <= SHORTLIST:
            self._busy_of = by_pool
            self._num_busy = sum([1 for worker in (*decodes, *prefills) if worker.charges])
        return Others(
            later,
            num_workers,
            prompt_use,
            self._num_busy / num_workers,
            self._demand,
            self._kv_price,
            time_price(prompt_use, usual_prompt_s),
            usual_prompt_s,
        )

    def _isolated_prefill_s(self, num_prompt: int, now: float) -> float:
        """Time that the prompt takes alone, with nothing cached, on the kind of worker that would compute it."""
        by_pool = self._workers.by_pool(now)
        workers = by_pool.prefills or by_pool.decodes
        if not workers:
            return 0.0
        return workers[0].model.kind.times.prefill_s(num_prompt, 0, workers[0].max_step_tokens)


def _is_good(choice: Choice | None) -> bool:
    """Whether a look at other workers would bring little. A policy that predicts nothing gets all workers."""
    if choice is None or choice.prediction is None:
        return False
    prediction = choice.prediction
    return prediction.risk + prediction.victims + prediction.future_victims < GOOD_RISK

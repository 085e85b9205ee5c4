"""Which workers a request runs on: the way with the least expected cost (router/placement/cost.py) among those that can
be taken.

Candidates are path P->D on the best few pairs whose link is proved, path D on the best few decode workers, and path P
where it pays: one token is wanted, no decode worker can be reached, a prefill worker is idle and the answer short, or
every other way does harm, as where too few of the workers decode. A worker that holds much of the prompt is always
among them, and keeps the conversation unless another is clearly better.

Where half of the workers have not reported for a while the predictions are not worth much: LMetric decides
(router/placement/lmetric.py).
"""

from math import inf
from typing import Final, final

from cluster.messages.ids import Path
from cluster.messages.placement import Prediction
from router.load.worker_state import WorkerState
from router.placement import lmetric
from router.placement.candidates import Candidates, Choice
from router.placement.cost import DecodePart, PrefillPart, alone, hand_over, prefill_s
from router.placement.option import Option
from router.placement.placement_input import PlacementInput
from router.prediction.latency import LatencyModel, LatencyModels
from router.prefixes.block_table import Hit

NUM_PREFILL_CANDIDATES: Final = 3
NUM_DECODE_CANDIDATES: Final = 4
STICKINESS: Final = 0.05
"""By so much cost another worker must be better than the one that has most of the prompt."""
NEGLIGIBLE: Final = 0.01
"""Of cost: no reason to compute a prompt again, or to move it, where a worker has most of it."""
STALE_SHARE: Final = 0.5
SHORT_OUTPUT_TOKENS: Final = 2.0
HARMLESS: Final = 0.02
"""Victims."""
HARMFUL: Final = 0.1
"""Risk and victims of the best way, from which on a prefill worker may take a request whole."""
MOST_RISK_ALONE: Final = 0.5
"""Of a request that a prefill worker takes whole, where others could: it is no place for what is hopeless elsewhere."""

_DECODE: Final = Path.DECODE


def goodput(ask: PlacementInput, candidates: Candidates, models: LatencyModels) -> Choice | None:
    """The policy of production."""
    if candidates.stale_share > STALE_SHARE:
        return lmetric.choose(ask, candidates, models)
    prefills = _best_prefills(ask, candidates) if candidates.may_hand_over or candidates.may_prefill_alone else []
    ways = _Ways(ask, candidates, prefills, models)
    holder, crowd = holder_of(ask, candidates.decodes), _least_crowded(ask, candidates.decodes)
    for decode in _best_decodes(ask, crowd, holder):
        ways.add(decode)
    ways.add_later_prefills()
    best = ways.best(holder)
    if _may_prefill_alone(ask, candidates, prefills, best):
        ways.add_prefills_alone(1.0 if best is None or ask.request.max_output_tokens == 1 else MOST_RISK_ALONE)
        best = ways.best(holder)
    if best is None:
        return None
    considered = ways.considered(best)
    why = f"least expected cost of {len(ways.priced)} ways"
    return Choice(best.path, best.prefill, best.decode, why, considered[0], considered)


def holder_of(ask: PlacementInput, workers: list[WorkerState]) -> WorkerState | None:
    """Who has most of the prompt, if anybody has some of it."""
    hits = ask.hits
    most, holder, last = 0, None, None
    if hits:
        for worker in workers:
            found = hits.get(worker.worker)
            if found is None or found is last:  # those who hold equally much mostly share one Hit
                continue
            last = found
            if (hit := ask.hit(worker)) > most:
                most, holder = hit, worker
    return holder


@final
class _Ways:
    """The ways to run one request that have been priced."""

    __slots__ = (
        "_ask",
        "_best_pair",
        "_candidates",
        "_first",
        "_may_hand_over",
        "_models",
        "_pairing",
        "_prefills",
        "priced",
    )

    def __init__(
        self, ask: PlacementInput, candidates: Candidates, prefills: list[PrefillPart], models: LatencyModels
    ) -> None:
        self._ask, self._candidates, self._prefills, self._models = ask, candidates, prefills, models
        self._may_hand_over = candidates.may_hand_over
        if candidates.may_prefill_alone and ask.request.max_output_tokens == 1:
            self._may_hand_over = False  # it ends at once
        self._best_pair: Option | None = None
        self._pairing: DecodePart | None = None
        """Its decode worker."""
        self._first = 0
        """Its prefill worker's place among those that may be taken."""
        self.priced: list[Option] = []

    def add(self, decode: DecodePart) -> None:
        """With the soonest prefill worker that is connected, and alone."""
        if self._may_hand_over:
            for number, prefill in enumerate(self._prefills):
                if self._candidates.can_pair(prefill.worker, decode.worker):
                    way = self._hand_over(prefill, decode)
                    if self._best_pair is None or way.cost < self._best_pair.cost:
                        self._best_pair, self._pairing, self._first = way, decode, number
                    break
        if self._candidates.may_stay:
            self.priced.append(alone(self._ask, decode, self._models))

    def add_later_prefills(self) -> None:
        """The best pair's decode worker with the prefill workers that have the prompt computed later."""
        decode = self._pairing
        if decode is None:
            return
        sooner = self._prefills[self._first]
        for later in self._prefills[self._first + 1 :]:
            may_be_better = _may_be_better(later, sooner, decode, self._ask.now)
            if may_be_better and self._candidates.can_pair(later.worker, decode.worker):
                self._hand_over(later, decode)

    def add_prefills_alone(self, most_risk: float) -> None:
        decodes = self._candidates.decodes
        peer = decodes[0] if decodes else None
        for part in self._prefills:
            way = alone(self._ask, DecodePart(self._ask, part.worker), self._models, is_prefill=True, peer=peer)
            if way.risk <= most_risk:
                self.priced.append(way)

    def best(self, holder: WorkerState | None) -> Option | None:
        """`holder`: who has most of the prompt."""
        best = _cheapest(self.priced)
        if best is None or holder is None:
            return best
        if best.decode is not holder:
            sticky = _cheapest([way for way in self.priced if way.decode is holder])
            if sticky is not None and sticky.cost <= best.cost + STICKINESS:
                best = sticky
        if best.path is not _DECODE and self._ask.hit(holder) >= self._ask.num_prompt / 2:
            for way in self.priced:
                if way.path is _DECODE and way.decode is holder and way.cost <= best.cost + NEGLIGIBLE:
                    return way
        return best

    def considered(self, best: Option) -> tuple[Prediction, ...]:
        """The best way, and that of each other path."""
        others: dict[Path, Option] = {}
        for way in self.priced:
            if way.path is best.path:
                continue
            other = others.get(way.path)
            if other is None or way.cost < other.cost:
                others[way.path] = way
        return best.prediction(), *[way.prediction() for way in others.values()]

    def _hand_over(self, prefill: PrefillPart, decode: DecodePart) -> Option:
        way = hand_over(self._ask, prefill, decode, self._models)
        self.priced.append(way)
        return way


def _cheapest(ways: list[Option]) -> Option | None:
    best: Option | None = None
    for way in ways:
        if best is None or way.cost < best.cost:
            best = way
    return best


def _may_be_better(later: PrefillPart, sooner: PrefillPart, decode: DecodePart, now: float) -> bool:
    """It takes less engine time, or nobody decodes there, or its link may be free before the other's."""
    if later.seconds < sooner.seconds or sooner.worker.residents:
        return True
    return max(sooner.worker.link_free_at, decode.worker.link_free_at) > now + sooner.done_s


def _may_prefill_alone(
    ask: PlacementInput, candidates: Candidates, prefills: list[PrefillPart], other: Option | None
) -> bool:
    """`other`: the best way on another path. A prefill worker's steps are long: who decodes there waits for other
    prompts at every token.
    """
    if not prefills or not candidates.may_prefill_alone:
        return False
    if other is None or ask.request.max_output_tokens == 1 or other.risk + other.victims > HARMFUL:
        return True
    return ask.outputs[2] <= SHORT_OUTPUT_TOKENS and any(not part.worker.charges for part in prefills)


def _best_prefills(ask: PlacementInput, candidates: Candidates) -> list[PrefillPart]:
    """Those that have it computed first. Those that hold equally much of a prompt take equally long."""
    now, hits = ask.now, ask.hits
    best: list[PrefillPart] = []
    last_s, takes_s, without_s = inf, 0.0, -1.0
    model: LatencyModel | None = None
    found: Hit | None = None
    for worker in candidates.prefills:
        hit = hits.get(worker.worker)
        if worker.model is not model:
            model, found, without_s = worker.model, hit, -1.0
            takes_s = prefill_s(ask, worker)
        elif hit is not found:
            if found is None:
                without_s = takes_s
            found = hit
            takes_s = without_s if hit is None and without_s >= 0.0 else prefill_s(ask, worker)
        done_s = worker.queue_s(now) + takes_s if worker.prefilling else takes_s
        if done_s >= last_s:
            continue
        place = len(best)
        while place and best[place - 1].done_s > done_s:
            place -= 1
        best.insert(place, PrefillPart(worker, takes_s, done_s))
        if len(best) > NUM_PREFILL_CANDIDATES:
            best.pop()
        if len(best) == NUM_PREFILL_CANDIDATES:
            last_s = best[-1].done_s
    return best


def _least_crowded(ask: PlacementInput, workers: list[WorkerState]) -> list[WorkerState]:
    """The decode workers with the shortest steps; those with enough memory before those without."""
    now, need = ask.now, ask.kv_tokens
    best: list[_Crowded] = []
    short: list[_Crowded] = []
    last_s = inf
    for worker in workers:
        crowding_s = worker.crowding_s(now)
        if crowding_s >= last_s:
            continue
        if worker.kv_reserved + need > worker.kv_capacity:
            _sort_in(short, worker, crowding_s)
            continue
        _sort_in(best, worker, crowding_s)
        if len(best) == NUM_DECODE_CANDIDATES:
            last_s = best[-1].crowding_s
    return [crowded.worker for crowded in [*best, *short][:NUM_DECODE_CANDIDATES]]


@final
class _Crowded:
    __slots__ = ("crowding_s", "worker")

    def __init__(self, worker: WorkerState, crowding_s: float) -> None:
        self.worker = worker
        self.crowding_s = crowding_s


def _sort_in(several: list[_Crowded], worker: WorkerState, crowding_s: float) -> None:
    """Behind those that are as crowded, and into no more than NUM_DECODE_CANDIDATES."""
    place = len(several)
    while place and several[place - 1].crowding_s > crowding_s:
        place -= 1
    several.insert(place, _Crowded(worker, crowding_s))
    if len(several) > NUM_DECODE_CANDIDATES:
        several.pop()


def _best_decodes(ask: PlacementInput, crowd: list[WorkerState], holder: WorkerState | None) -> list[DecodePart]:
    """The least crowded ones, and the one that holds most of the prompt. Where the first disturbs nobody, those that
    are more crowded and hold no more are not worth a look.
    """
    if not crowd:
        return []
    first = DecodePart(ask, crowd[0])
    others = crowd[1:] if holder is None or holder in crowd else [*crowd[1:], holder]
    if first.join_victims < HARMLESS and not first.queue_s and not first.missing:
        others = [worker for worker in others if ask.hit(worker) > first.hit]
    return [first, *[DecodePart(ask, worker) for worker in others]]


def least_prefill_s(ask: PlacementInput, candidates: Candidates) -> float:
    """What the prompt takes where that is shortest, with nothing before it."""
    workers = [*candidates.prefills, *candidates.decodes]
    if not workers:
        return 0.0
    return prefill_s(ask, holder_of(ask, workers) or workers[0])

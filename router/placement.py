"""Which workers a request runs on: the way with the least expected cost (router/cost.py) among those that can be taken.

Candidates are path P->D on the best few pairs whose link is proved, path D on the best few decode workers, and path P
where it pays: one token is wanted, no decode worker can be reached, or a prefill worker is idle and the answer short. A
worker that holds much of the prompt is always among them, and keeps the conversation unless another is clearly better.

Where half of the workers have not reported for a while the predictions are not worth much: LMetric decides
(router/lmetric.py).
"""

from bisect import insort
from collections.abc import Iterable, Sequence
from math import inf
from operator import attrgetter
from typing import NamedTuple

from cluster.types import Path, Prediction
from router import lmetric
from router.ask import Ask
from router.block_table import Hit
from router.choice import Candidates, Choice
from router.cost import DecodePart, PrefillPart, alone, hand_over, prefill_s
from router.fleet import WorkerState
from router.latency import LatencyModel, LatencyModels

NUM_PREFILL_CANDIDATES = 3
NUM_DECODE_CANDIDATES = 4
STICKINESS = 0.05
"""By so much cost another worker must be better than the one that has most of the prompt."""
NEGLIGIBLE = 0.01
"""Of cost: no reason to compute a prompt again, or to move it, where a worker has most of it."""
STALE_SHARE = 0.5
SHORT_OUTPUT_TOKENS = 2.0
HARMLESS = 0.02
"""Victims."""


def goodput(ask: Ask, candidates: Candidates, models: LatencyModels) -> Choice | None:
    """The policy of production."""
    if candidates.stale_share > STALE_SHARE:
        return lmetric.choose(ask, candidates, models)
    prefills = _best_prefills(ask, candidates) if candidates.may_hand_over or candidates.may_prefill_alone else []
    ways = _Ways(ask, candidates, prefills, models)
    holder, crowd = holder_of(ask, candidates.decodes), _least_crowded(ask, candidates.decodes)
    for decode in _best_decodes(ask, crowd, holder):
        ways.add(decode)
    ways.add_later_prefills()
    if _prefill_alone_pays(ask, candidates, prefills):
        ways.add_prefills_alone()
    best = ways.best(holder)
    if best is None:
        return None
    considered = (best.prediction, *ways.of_other_paths(best.prediction))
    why = f"least expected cost of {len(ways.priced)} ways"
    return Choice(best.prediction.path, best.prefill, best.decode, why, best.prediction, considered)


def holder_of(ask: Ask, workers: Sequence[WorkerState]) -> WorkerState | None:
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


class _Way(NamedTuple):
    cost: float
    prediction: Prediction
    prefill: WorkerState | None
    decode: WorkerState | None


class _Ways:
    """The ways to run one request that have been priced."""

    def __init__(self, ask: Ask, candidates: Candidates, prefills: list[PrefillPart], models: LatencyModels) -> None:
        self._ask, self._candidates, self._prefills, self._models = ask, candidates, prefills, models
        ends_at_once = candidates.may_prefill_alone and ask.request.max_output_tokens == 1
        self._may_hand_over = candidates.may_hand_over and not ends_at_once
        self._best_pair: tuple[float, DecodePart, int] | None = None
        """Its cost, and the prefill worker's place among those that may be taken."""
        self.priced: list[_Way] = []

    def add(self, decode: DecodePart) -> None:
        """With the soonest prefill worker that is connected, and alone."""
        if self._may_hand_over:
            for number, prefill in enumerate(self._prefills):
                if self._candidates.can_pair(prefill.worker, decode.worker):
                    cost = self._hand_over(prefill, decode)
                    if self._best_pair is None or cost < self._best_pair[0]:
                        self._best_pair = cost, decode, number
                    break
        if self._candidates.may_stay:
            way = alone(self._ask, decode, self._models)
            self.priced.append(_Way(way.cost, way, None, decode.worker))

    def add_later_prefills(self) -> None:
        """The best pair's decode worker with the prefill workers that have the prompt computed later."""
        if self._best_pair is None:
            return
        _, decode, first = self._best_pair
        for prefill in self._prefills[first + 1 :]:
            may_be_better = _may_be_better(prefill, self._prefills[first], decode, self._ask.now)
            if may_be_better and self._candidates.can_pair(prefill.worker, decode.worker):
                self._hand_over(prefill, decode)

    def add_prefills_alone(self) -> None:
        for part in self._prefills:
            way = alone(self._ask, DecodePart(self._ask, part.worker), self._models, Path.PREFILL)
            self.priced.append(_Way(way.cost, way, part.worker, None))

    def best(self, holder: WorkerState | None) -> _Way | None:
        """`holder`: who has most of the prompt."""
        best = min(self.priced, key=_cost, default=None)
        if best is None or holder is None:
            return best
        if best.decode is not holder:
            sticky = min([way for way in self.priced if way.decode is holder], key=_cost, default=best)
            best = sticky if sticky.cost <= best.cost + STICKINESS else best
        if best.prediction.path is not Path.DECODE and self._ask.hit(holder) >= self._ask.num_prompt / 2:
            stays = (way for way in self.priced if way.prediction.path is Path.DECODE and way.decode is holder)
            best = next((way for way in stays if way.cost <= best.cost + NEGLIGIBLE), best)
        return best

    def of_other_paths(self, best: Prediction) -> Iterable[Prediction]:
        """The best way of each other path."""
        others: dict[Path, Prediction] = {}
        for way in self.priced:
            path = way.prediction.path
            if path is not best.path and (path not in others or way.cost < others[path].cost):
                others[path] = way.prediction
        return others.values()

    def _hand_over(self, prefill: PrefillPart, decode: DecodePart) -> float:
        way = hand_over(self._ask, prefill, decode, self._models)
        self.priced.append(_Way(way.cost, way, prefill.worker, decode.worker))
        return way.cost


def _may_be_better(later: PrefillPart, sooner: PrefillPart, decode: DecodePart, now: float) -> bool:
    """It takes less engine time, or its link may be free before the other's."""
    free_at = max(sooner.worker.link_free_at, decode.worker.link_free_at)
    return later.seconds < sooner.seconds or free_at > now + sooner.done_s


def _prefill_alone_pays(ask: Ask, candidates: Candidates, prefills: list[PrefillPart]) -> bool:
    """A prefill worker's steps are long: who decodes there waits for other prompts at every token."""
    if not prefills or not candidates.may_prefill_alone:
        return False
    if not (candidates.may_stay or candidates.may_hand_over) or not candidates.decodes:
        return True
    if ask.request.max_output_tokens == 1:
        return True
    is_idle = any(not part.worker.charges for part in prefills)
    return is_idle and ask.outputs[2] <= SHORT_OUTPUT_TOKENS


def _best_prefills(ask: Ask, candidates: Candidates) -> list[PrefillPart]:
    """Those that have it computed first. Those that hold equally much of a prompt take equally long."""
    now, found_on = ask.now, ask.hits.get
    best: list[tuple[float, int, float, WorkerState]] = []
    last_s, takes_s = inf, 0.0
    seconds: dict[tuple[LatencyModel, Hit | None], float] = {}
    model: LatencyModel | None = None
    found: Hit | None = None
    for number, worker in enumerate(candidates.prefills):
        hit = found_on(worker.worker)
        if hit is not found or worker.model is not model:
            model, found = worker.model, hit
            takes_s = seconds.get((model, hit), -1.0)
            if takes_s < 0.0:
                takes_s = seconds[model, hit] = prefill_s(ask, worker)
        done_s = worker.queue_s(now) + takes_s if worker.prefilling else takes_s
        if done_s < last_s:
            insort(best, (done_s, number, takes_s, worker))
            del best[NUM_PREFILL_CANDIDATES:]
            last_s = best[-1][0] if len(best) == NUM_PREFILL_CANDIDATES else inf
    return [PrefillPart(worker, takes_s, done_s) for done_s, _, takes_s, worker in best]


def _least_crowded(ask: Ask, workers: Sequence[WorkerState]) -> list[WorkerState]:
    """The decode workers with the shortest steps; those with enough memory before those without."""
    now, need = ask.now, ask.kv_tokens
    crowded = [worker.crowding_s(now) if worker.prefilling else worker.crowd_s for worker in workers]
    best: list[WorkerState] = []
    short: list[WorkerState] = []
    for number in sorted(range(len(workers)), key=crowded.__getitem__):
        worker = workers[number]
        if worker.kv_reserved + need > worker.kv_capacity:
            short.append(worker)
            continue
        best.append(worker)
        if len(best) == NUM_DECODE_CANDIDATES:
            return best
    return [*best, *short][:NUM_DECODE_CANDIDATES]


def _best_decodes(ask: Ask, crowd: list[WorkerState], holder: WorkerState | None) -> list[DecodePart]:
    """The least crowded ones, and the one that holds most of the prompt. Where the first disturbs nobody, those that
    are more crowded and hold no more are not worth a look.
    """
    if not crowd:
        return []
    first = DecodePart(ask, crowd[0])
    others = crowd[1:] if holder is None or holder in crowd else [*crowd[1:], holder]
    if first.join_victims < HARMLESS and not first.queue_s and not first.missing:
        others = [worker for worker in others if ask.hit(worker) > first.hit]
    return [first, *(DecodePart(ask, worker) for worker in others)]


_cost = attrgetter("cost")

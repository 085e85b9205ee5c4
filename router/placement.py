"""Which workers a request runs on: the way with the least expected cost (router/cost.py) among those that can be taken.

Candidates are path P->D on the best few pairs whose link is proved, path D on the best few decode workers, and path P
where it pays: one token is wanted, no decode worker can be reached, or a prefill worker is idle and the answer short. A
worker that holds much of the prompt is always among them, and keeps the conversation unless another is clearly better.
Where half of the workers have not reported for a while the predictions are not worth much: LMetric decides
(router/lmetric.py).
"""

from collections.abc import Sequence
from operator import attrgetter

from cluster.types import Path, Prediction, WorkerId
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
    holder = holder_of(ask, candidates.decodes)
    decodes = _best_decodes(ask, candidates, holder)
    ways = _ways(ask, candidates, prefills, decodes, models)
    if not ways:
        return None
    best = min(ways, key=_cost)
    if holder is not None and best.decode != holder.worker:
        there = [way for way in ways if way.decode == holder.worker]
        sticky = min(there, key=_cost, default=best)
        best = sticky if sticky.cost <= best.cost + STICKINESS else best
    if holder is not None and best.path is not Path.DECODE and ask.hit(holder) >= ask.num_prompt / 2:
        stays = (way for way in ways if way.path is Path.DECODE and way.decode == holder.worker)
        best = next((way for way in stays if way.cost <= best.cost + NEGLIGIBLE), best)
    return Choice(
        best.path,
        _found(best.prefill, candidates.prefills),
        _found(best.decode, candidates.decodes),
        f"least expected cost of {len(ways)} ways",
        best,
        (best, *_other_paths(best, ways)),
    )


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


def _found(worker: WorkerId | None, workers: Sequence[WorkerState]) -> WorkerState | None:
    return next((state for state in workers if state.worker == worker), None) if worker else None


def _other_paths(best: Prediction, ways: Sequence[Prediction]) -> list[Prediction]:
    """The best way of each other path."""
    others: dict[Path, Prediction] = {}
    for way in ways:
        if way.path is not best.path and (way.path not in others or way.cost < others[way.path].cost):
            others[way.path] = way
    return list(others.values())


def _ways(
    ask: Ask, candidates: Candidates, prefills: list[PrefillPart], decodes: list[DecodePart], models: LatencyModels
) -> list[Prediction]:
    ways = []
    ends_at_once = candidates.may_prefill_alone and ask.request.max_output_tokens == 1
    if candidates.may_hand_over and prefills and not ends_at_once:
        ways += _pairs(ask, candidates, prefills, decodes, models)
    if candidates.may_stay:
        ways += [alone(ask, decode, models) for decode in decodes]
    if candidates.may_prefill_alone and prefills and _prefill_alone_pays(ask, candidates, prefills):
        ways += [alone(ask, DecodePart(ask, part.worker), models, Path.PREFILL) for part in prefills]
    return ways


def _pairs(
    ask: Ask, candidates: Candidates, prefills: list[PrefillPart], decodes: list[DecodePart], models: LatencyModels
) -> list[Prediction]:
    """Each decode worker with the soonest prefill worker that is connected, and the best of them with the others."""
    ways: list[tuple[Prediction, DecodePart, int]] = []
    for decode in decodes:
        for number, prefill in enumerate(prefills):
            if candidates.can_pair(prefill.worker, decode.worker):
                ways.append((hand_over(ask, prefill, decode, models), decode, number))
                break
    if not ways:
        return []
    _, best, first = min(ways, key=lambda way: way[0].cost)
    others = [p for p in prefills[first + 1 :] if _may_be_better(p, prefills[first], best, ask.now)]
    others = [p for p in others if candidates.can_pair(p.worker, best.worker)]
    return [way for way, _, _ in ways] + [hand_over(ask, prefill, best, models) for prefill in others]


def _may_be_better(later: PrefillPart, sooner: PrefillPart, decode: DecodePart, now: float) -> bool:
    """It takes less engine time, or its link may be free before the other's."""
    free_at = max(sooner.worker.link_free_at, decode.worker.link_free_at)
    return later.seconds < sooner.seconds or free_at > now + sooner.done_s


def _prefill_alone_pays(ask: Ask, candidates: Candidates, prefills: list[PrefillPart]) -> bool:
    """A prefill worker's steps are long: who decodes there waits for other prompts at every token."""
    if not (candidates.may_stay or candidates.may_hand_over) or not candidates.decodes:
        return True
    if ask.request.max_output_tokens == 1:
        return True
    is_idle = any(not part.worker.charges for part in prefills)
    return is_idle and ask.outputs[2] <= SHORT_OUTPUT_TOKENS


def _best_prefills(ask: Ask, candidates: Candidates) -> list[PrefillPart]:
    """Those that have it computed first. Those that hold equally much of a prompt take equally long."""
    now, hits = ask.now, ask.hits
    seconds: dict[tuple[LatencyModel, Hit | None], float] = {}
    parts: list[tuple[float, int, float, WorkerState]] = []
    takes_s = 0.0
    alike: tuple[LatencyModel, Hit | None] | None = None
    for number, worker in enumerate(candidates.prefills):
        before, alike = alike, (worker.model, hits.get(worker.worker))
        if alike != before:
            takes_s = seconds.get(alike, -1.0)
            if takes_s < 0.0:
                takes_s = seconds[alike] = prefill_s(ask, worker)
        parts.append((worker.queue_s(now) + takes_s if worker.prefilling else takes_s, number, takes_s, worker))
    parts.sort()
    return [PrefillPart(worker, takes_s, done_s) for done_s, _, takes_s, worker in parts[:NUM_PREFILL_CANDIDATES]]


def _best_decodes(ask: Ask, candidates: Candidates, holder: WorkerState | None) -> list[DecodePart]:
    """The least crowded ones with enough memory, and the one that holds most of the prompt. Where the first disturbs
    nobody, those that are more crowded and hold no more are not worth a look.
    """
    workers = candidates.decodes
    if not workers:
        return []
    now, need = ask.now, ask.kv_tokens
    crowded = [worker.crowding_s(now) if worker.prefilling else worker.crowd_s for worker in workers]
    is_short = [worker.kv_reserved + need > worker.kv_capacity for worker in workers]
    ranked = sorted(zip(is_short, crowded, range(len(workers)), strict=True))
    best = [workers[number] for _, _, number in ranked[:NUM_DECODE_CANDIDATES]]
    if holder is not None and holder not in best:
        best.append(holder)
    first = DecodePart(ask, best[0])
    if first.join_victims < HARMLESS and not first.queue_s and not first.missing:
        own_hit = ask.hit(best[0])
        best = [best[0], *(worker for worker in best[1:] if ask.hits and ask.hit(worker) > own_hit)]
    return [first, *(DecodePart(ask, worker) for worker in best[1:])]


_cost = attrgetter("cost")

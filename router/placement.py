"""Which workers a request runs on. Pure: a function of the request and of a snapshot of the workers.

Path P->D on the pair with the fewest open requests whose link is warm; path D where no pair can take the request;
refusal where no decode worker is left. Equal load takes turns.
"""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from cluster.types import Path, Placement, PlacementRequest, Pool, Rejection, WorkerView

T = TypeVar("T")

RETRY_AFTER_S = 5.0
"""A worker's restart takes tens of seconds: sooner only adds load, much later wastes a recovered service."""


def place(request: PlacementRequest, workers: Sequence[WorkerView], turn: int) -> Placement | Rejection:
    """`workers` are the live ones; `turn` counts placements and breaks ties in rotation."""
    usable = [w for w in workers if w.worker not in request.excluded]
    decodes = [w for w in usable if w.pool is Pool.DECODE]
    prefills = [w for w in usable if w.pool is Pool.PREFILL]
    pairs = [(p, d) for p in prefills for d in decodes if p.worker in d.links]
    if request.path is not Path.DECODE and request.can_hand_over and pairs:
        prefill, decode = min(_rotated(pairs, turn), key=lambda pair: _load(pair[0]) + _load(pair[1]))
        why = f"least open requests of {len(pairs)} connected pairs"
        return Placement(path=Path.PREFILL_DECODE, prefill=prefill.worker, decode=decode.worker, why=why)
    if request.path is Path.PREFILL_DECODE:
        return Rejection(retry_after_s=RETRY_AFTER_S, why="path P->D is asked for and no connected pair can take it")
    if decodes:
        why = "path D is asked for" if request.path else _why_not_pair(request, prefills)
        return Placement(path=Path.DECODE, prefill=None, decode=min(_rotated(decodes, turn), key=_load).worker, why=why)
    return Rejection(retry_after_s=RETRY_AFTER_S, why="no decode worker can be reached")


def _load(worker: WorkerView) -> int:
    return worker.num_placed


def _rotated(items: Sequence[T], turn: int) -> Iterable[T]:
    start = turn % len(items)
    return [*items[start:], *items[:start]]


def _why_not_pair(request: PlacementRequest, prefills: Sequence[WorkerView]) -> str:
    if not request.can_hand_over:
        return "the request cannot be handed over"
    return "no connected pair" if prefills else "no prefill worker can be reached"

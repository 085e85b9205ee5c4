"""What a placement policy gets and gives: the workers that a request may use, and the one that it is to use."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from cluster.types import Path, Pool, Prediction, WorkerId
from router.cost import Ask
from router.fleet import WorkerState
from router.latency import LatencyModels

Pair = tuple[WorkerId, WorkerId]
"""A prefill and a decode worker."""


class Choice(NamedTuple):
    path: Path
    prefill: WorkerState | None
    """On path P it generates too."""
    decode: WorkerState | None
    why: str
    prediction: Prediction | None = None
    considered: tuple[Prediction, ...] = ()


class Candidates(NamedTuple):
    """The workers that may take a request, as its own constraints leave them."""

    prefills: Sequence[WorkerState]
    decodes: Sequence[WorkerState]
    suspects: frozenset[Pair]
    """Pairs that hand over nothing."""
    may_hand_over: bool
    may_stay: bool
    """On a decode worker alone."""
    may_prefill_alone: bool
    """On a prefill worker alone, if that pays."""
    turn: int
    """Breaks ties in rotation."""

    def can_pair(self, prefill: WorkerState, decode: WorkerState) -> bool:
        return prefill.worker in decode.report.links and (prefill.worker, decode.worker) not in self.suspects


Policy = Callable[[Ask, Candidates, LatencyModels], Choice | None]
"""None: nobody can take the request."""


def candidates_of(ask: Ask, workers: Iterable[WorkerState], suspects: frozenset[Pair], turn: int) -> Candidates:
    """Fresh workers with room that the request has not failed on; stale ones only where no others are."""
    request = ask.request
    usable = [w for w in workers if w.has_room and w.worker not in request.excluded]
    fresh = [w for w in usable if not w.is_stale(ask.now)]
    return Candidates(
        prefills=_rotated(_of_pool(Pool.PREFILL, fresh) or _of_pool(Pool.PREFILL, usable), turn),
        decodes=_rotated(_of_pool(Pool.DECODE, fresh) or _of_pool(Pool.DECODE, usable), turn),
        suspects=suspects,
        may_hand_over=request.can_hand_over and request.path in (None, Path.PREFILL_DECODE),
        may_stay=request.path in (None, Path.DECODE),
        may_prefill_alone=request.path in (None, Path.PREFILL),
        turn=turn,
    )


def _of_pool(pool: Pool, workers: list[WorkerState]) -> list[WorkerState]:
    return [worker for worker in workers if worker.pool is pool]


def _rotated(workers: list[WorkerState], turn: int) -> list[WorkerState]:
    start = turn % len(workers) if workers else 0
    return [*workers[start:], *workers[:start]]

"""What a placement policy gets and gives: the workers that a request may use, and the one that it is to use."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from cluster.types import (
    Path,
    Pool,
    Prediction,
    WorkerId,
)
from router.ask import Ask
from router.fleet import WorkerState
from router.latency import LatencyModels

ROSTER_AGE_S = 0.05

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
    stale_share: float
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


class Roster(NamedTuple):
    """The live workers by pool. Looked through anew every ROSTER_AGE_S, not for every request."""

    prefills: list[WorkerState]
    """Those that report as they should; those that do not where there are no others."""
    decodes: list[WorkerState]
    silent_prefills: list[WorkerState]
    """Those that have missed reports: for requests that none of the others can take."""
    silent_decodes: list[WorkerState]
    stale_share: float
    """Of the live workers, that have missed reports."""
    made_at: float
    roomy_until: int
    """Before this turn nobody is full."""


NOBODY = Roster([], [], [], [], 0.0, float("-inf"), 0)


def roster_of(workers: Iterable[WorkerState], now: float, turn: int) -> Roster:
    """`turn`: one more with every request that is placed."""
    live = list(workers)
    fresh = [worker for worker in live if not worker.is_stale(now)]
    silent = [worker for worker in live if worker.is_stale(now)]
    silent_prefills, silent_decodes = _of_pool(Pool.PREFILL, silent), _of_pool(Pool.DECODE, silent)
    return Roster(
        prefills=_of_pool(Pool.PREFILL, fresh) or silent_prefills,
        decodes=_of_pool(Pool.DECODE, fresh) or silent_decodes,
        silent_prefills=silent_prefills,
        silent_decodes=silent_decodes,
        stale_share=1.0 - len(fresh) / len(live) if live else 0.0,
        made_at=now,
        roomy_until=turn + min([worker.room - len(worker.charges) for worker in live], default=0),
    )


def candidates_of(ask: Ask, roster: Roster, suspects: frozenset[Pair], turn: int) -> Candidates:
    """Workers with room that the request has not failed on."""
    request = ask.request
    return Candidates(
        prefills=_usable(roster.prefills, ask, roster, turn) or _usable(roster.silent_prefills, ask, roster, turn),
        decodes=_usable(roster.decodes, ask, roster, turn) or _usable(roster.silent_decodes, ask, roster, turn),
        stale_share=roster.stale_share,
        suspects=suspects,
        may_hand_over=request.can_hand_over and request.path in (None, Path.PREFILL_DECODE),
        may_stay=request.path in (None, Path.DECODE),
        may_prefill_alone=request.path in (None, Path.PREFILL),
        turn=turn,
    )


def _of_pool(pool: Pool, workers: list[WorkerState]) -> list[WorkerState]:
    return [worker for worker in workers if worker.pool is pool]


def _usable(workers: list[WorkerState], ask: Ask, roster: Roster, turn: int) -> list[WorkerState]:
    """In rotation, so that the first of equals is not always the same."""
    usable, excluded = workers, ask.request.excluded
    if turn >= roster.roomy_until:
        usable = [worker for worker in usable if len(worker.charges) < worker.room]
    if excluded:
        usable = [worker for worker in usable if worker.worker not in excluded]
    start = turn % len(usable) if usable else 0
    return usable[start:] + usable[:start]

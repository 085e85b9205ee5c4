"""What a placement policy gets and gives: the workers that a request may use, and the one that it is to use."""

from collections.abc import Callable, Iterable
from typing import Final, final

from cluster.messages.ids import Path, Pool, WorkerId
from cluster.messages.placement import Prediction
from router.load.worker_state import WorkerState
from router.placement.placement_input import PlacementInput
from router.prediction.latency import LatencyModels

ROSTER_AGE_S: Final = 0.05

Pair = tuple[WorkerId, WorkerId]
"""A prefill and a decode worker."""


@final
class Choice:
    __slots__ = ("considered", "decode", "path", "prediction", "prefill", "why")

    def __init__(
        self,
        path: Path,
        prefill: WorkerState | None,
        decode: WorkerState | None,
        why: str,
        prediction: Prediction | None = None,
        considered: tuple[Prediction, ...] = (),
    ) -> None:
        self.path = path
        self.prefill = prefill
        """On path P it generates too."""
        self.decode = decode
        self.why = why
        self.prediction = prediction
        self.considered = considered


@final
class Candidates:
    """The workers that may take a request, as its own constraints leave them."""

    __slots__ = (
        "decodes",
        "may_hand_over",
        "may_prefill_alone",
        "may_stay",
        "prefills",
        "stale_share",
        "suspects",
    )

    def __init__(
        self,
        path: Path | None,
        prefills: list[WorkerState],
        decodes: list[WorkerState],
        stale_share: float,
        suspects: frozenset[Pair],
        can_hand_over: bool,
    ) -> None:
        """`path`: the only one that is wanted. `suspects`: pairs that hand over nothing."""
        self.prefills = prefills
        self.decodes = decodes
        self.stale_share = stale_share
        self.suspects = suspects
        self.may_hand_over = can_hand_over and (path is None or path is Path.PREFILL_DECODE)
        self.may_stay = path is None or path is Path.DECODE
        """On a decode worker alone."""
        self.may_prefill_alone = path is None or path is Path.PREFILL
        """On a prefill worker alone, if that pays."""

    def can_pair(self, prefill: WorkerState, decode: WorkerState) -> bool:
        if prefill.worker not in decode.links:
            return False
        return not self.suspects or (prefill.worker, decode.worker) not in self.suspects


Policy = Callable[[PlacementInput, Candidates, LatencyModels], Choice | None]
"""None: nobody can take the request."""


@final
class Roster:
    """The live workers by pool. Looked through anew every ROSTER_AGE_S, not for every request."""

    __slots__ = (
        "decodes",
        "is_anybody",
        "made_at",
        "prefills",
        "roomy_until",
        "silent_decodes",
        "silent_prefills",
        "stale_share",
    )

    def __init__(self, fresh: list[WorkerState], silent: list[WorkerState], made_at: float, roomy_until: int) -> None:
        """`silent`: those that have missed reports. `roomy_until`: before this turn nobody is full."""
        self.silent_prefills = _of_pool(Pool.PREFILL, silent)
        """For requests that none of the others can take."""
        self.silent_decodes = _of_pool(Pool.DECODE, silent)
        self.prefills = _of_pool(Pool.PREFILL, fresh) or self.silent_prefills
        """Those that report as they should; those that do not where there are no others."""
        self.decodes = _of_pool(Pool.DECODE, fresh) or self.silent_decodes
        num_live = len(fresh) + len(silent)
        self.is_anybody = num_live > 0
        self.stale_share = 1.0 - len(fresh) / num_live if num_live else 0.0
        """Of the live workers, that have missed reports."""
        self.made_at = made_at
        self.roomy_until = roomy_until


def nobody() -> Roster:
    """To be looked through at once."""
    return Roster([], [], float("-inf"), 0)


def roster_of(workers: Iterable[WorkerState], now: float, turn: int) -> Roster:
    """`turn`: one more with every request that is placed."""
    live = list(workers)
    fresh = [worker for worker in live if not worker.is_stale(now)]
    silent = [worker for worker in live if worker.is_stale(now)]
    room = min([worker.room - len(worker.charges) for worker in live], default=0)
    return Roster(fresh, silent, now, turn + room)


def candidates_of(ask: PlacementInput, roster: Roster, suspects: frozenset[Pair], turn: int) -> Candidates:
    """Workers with room that the request has not failed on."""
    request = ask.request
    return Candidates(
        request.path,
        _usable(roster.prefills, ask, roster, turn) or _usable(roster.silent_prefills, ask, roster, turn),
        _usable(roster.decodes, ask, roster, turn) or _usable(roster.silent_decodes, ask, roster, turn),
        roster.stale_share,
        suspects,
        request.can_hand_over,
    )


def _of_pool(pool: Pool, workers: list[WorkerState]) -> list[WorkerState]:
    return [worker for worker in workers if worker.pool is pool]


def _usable(workers: list[WorkerState], ask: PlacementInput, roster: Roster, turn: int) -> list[WorkerState]:
    """In rotation, so that the first of equals is not always the same."""
    usable, excluded = workers, ask.request.excluded
    if turn >= roster.roomy_until:
        usable = [worker for worker in usable if len(worker.charges) < worker.room]
    if excluded:
        usable = [worker for worker in usable if worker.worker not in excluded]
    if ask.request.num_engines_lost:
        usable = _without_suspects(usable) or usable
    start = turn % len(usable) if usable else 0
    return usable[start:] + usable[:start]


def _without_suspects(workers: list[WorkerState]) -> list[WorkerState]:
    """Of the requests that an engine was lost with, one may be the reason: the next engine is lost to it alone."""
    return [worker for worker in workers if not any(made.num_engines_lost for made in worker.charges.values())]

"""What a placement policy gets and gives: the workers that a request may use, and the workers that it is to use."""

from collections.abc import Callable
from typing import Final, final

from cluster.messages.ids import Path, WorkerId
from cluster.messages.placement import Prediction
from router.load.charge import Work
from router.load.live_workers import WorkersByPool
from router.load.worker_state import WorkerState
from router.placement.placement_input import PlacementInput
from router.prediction.learned_latency import LatencyModels
from router.prefixes.narrowing import Hit
from router.trust.suspected_pairs import Pair

SHORTLIST: Final = 64
"""Workers of each pool that a placement looks at first, at least. The least crowded of them is on average among the
best 2 % of its pool. Higher costs time for each placement in larger pools; lower places worse there.
"""
MAX_HOLDERS: Final = 8
"""Workers of each pool that hold most of the prompt, and are looked at beside SHORTLIST. Higher costs time where many
workers hold a prompt; lower computes prompts again while holders with less to do are not looked at.
"""


@final
class Choice:
    """The workers that a policy has chosen for a request."""

    __slots__ = ("considered", "decode", "path", "prediction", "prefill", "why", "work")

    def __init__(
        self,
        path: Path,
        prefill: WorkerState | None,
        decode: WorkerState | None,
        why: str,
        work: Work | None = None,
        prediction: Prediction | None = None,
        considered: tuple[Prediction, ...] = (),
    ) -> None:
        self.path = path
        self.prefill = prefill
        """The worker that computes the prompt on paths P->D and P. On path P it generates, too."""
        self.decode = decode
        self.why = why
        self.work = work
        """What the choice takes of the workers. None if the policy does not price its options."""
        self.prediction = prediction
        self.considered = considered


@final
class Candidates:
    """The workers that may take a request, within the constraints of the request."""

    __slots__ = (
        "all_prefills",
        "barred",
        "decodes",
        "is_shortlist",
        "may_hand_over",
        "may_prefill_alone",
        "may_stay",
        "prefills",
        "stale_share",
        "wish",
    )

    def __init__(
        self,
        path: Path | None,
        prefills: list[WorkerState],
        decodes: list[WorkerState],
        stale_share: float,
        barred: frozenset[Pair],
        can_hand_over: bool,
        all_prefills: list[WorkerState] | None = None,
        *,
        is_shortlist: bool = False,
    ) -> None:
        """`path`: the only path that the request may take, or None. `barred`: pairs that hand nothing over.
        `all_prefills`: the same as `prefills` if it is missing.
        """
        self.prefills = prefills
        self.all_prefills = prefills if all_prefills is None else all_prefills
        """Those that may take the request. A decode worker has a proved link to some of them only."""
        self.is_shortlist = is_shortlist
        """Other workers may take the request, too."""
        self.decodes = decodes
        self.stale_share = stale_share
        self.barred = barred
        self.may_hand_over = can_hand_over and (path is None or path is Path.PREFILL_DECODE)
        self.may_stay = path is None or path is Path.DECODE
        """The request may run on a decode worker alone."""
        self.may_prefill_alone = path is None or path is Path.PREFILL
        """The request may run on a prefill worker alone, where that pays."""
        self.wish: Pair | None = None
        """The pair that the policy would have taken, had its link been proved. The policy writes it, also where it
        returns no choice.
        """

    def can_pair(self, prefill: WorkerState, decode: WorkerState) -> bool:
        return prefill.worker in decode.links and not self.is_barred(prefill, decode)

    def is_barred(self, prefill: WorkerState, decode: WorkerState) -> bool:
        return bool(self.barred) and (prefill.worker, decode.worker) in self.barred


Policy = Callable[[PlacementInput, Candidates, LatencyModels], Choice | None]
"""Returns None if no worker can take the request."""


def candidates_of(
    placement_input: PlacementInput,
    usable: "Usable",
    workers: WorkersByPool,
    barred: frozenset[Pair],
    num_placed: int,
    *,
    are_few: bool,
    may_drain: bool = False,
) -> Candidates:
    """Workers that have room and that the request has not failed on. `num_placed`: placements so far. `are_few`: of
    large pools, only some of the workers. `may_drain`: also the workers that an operator drains.
    """
    request = placement_input.request
    all_prefills = usable.first(workers.prefills, workers.stale_prefills)
    all_decodes = usable.first(workers.decodes, workers.stale_decodes)
    if request.pinned is not None:
        every = [*workers.prefills, *workers.stale_prefills, *workers.decodes, *workers.stale_decodes]
        every += workers.quarantined
        all_prefills = usable.pinned(request.pinned.prefill, every)
        all_decodes = usable.pinned(request.pinned.decode, every)
    elif may_drain:
        all_prefills = [*all_prefills, *usable.first(workers.draining_prefills, [])]
        all_decodes = [*all_decodes, *usable.first(workers.draining_decodes, [])]
    prefills = _in_rotation(all_prefills, placement_input, num_placed, are_few=are_few)
    decodes = _in_rotation(all_decodes, placement_input, num_placed, are_few=are_few)
    return Candidates(
        request.path,
        prefills,
        decodes,
        workers.stale_share,
        barred,
        request.can_hand_over,
        all_prefills,
        is_shortlist=are_few and max(len(all_prefills), len(all_decodes)) > SHORTLIST,
    )


@final
class Usable:
    """The workers that may take one request."""

    __slots__ = ("_excluded", "_has_lost_engines", "_may_be_full", "_num_left", "_unreachable")

    def __init__(
        self,
        placement_input: PlacementInput,
        workers: WorkersByPool,
        unreachable: frozenset[WorkerId],
        num_placed: int,
        *,
        leaves_a_place: bool,
    ) -> None:
        """`unreachable`: workers that the request's ingress could not reach lately, for requests that no other worker
        can take. `num_placed`: placements so far. `leaves_a_place`: the request fills no worker.
        """
        self._num_left = 1 if leaves_a_place else 0
        self._excluded = placement_input.request.excluded
        self._unreachable = unreachable
        self._may_be_full = leaves_a_place or num_placed >= workers.room_until
        self._has_lost_engines = placement_input.request.num_engines_lost > 0

    def first(self, fresh: list[WorkerState], stale: list[WorkerState]) -> list[WorkerState]:
        """Of the fresh workers, or of the stale ones where no fresh one is left."""
        excluded = self._excluded
        if self._unreachable:
            without = excluded | self._unreachable
            reachable = self._of(fresh, without) or self._of(stale, without)
            if reachable:
                return reachable
        return self._of(fresh, excluded) or self._of(stale, excluded)

    def pinned(self, worker: WorkerId | None, every: list[WorkerState]) -> list[WorkerState]:
        """The worker that the request must use, if it may. `every`: all workers, also those in quarantine."""
        return self._of([state for state in every if state.worker == worker][:1], self._excluded)

    def _of(self, several: list[WorkerState], excluded: frozenset[WorkerId]) -> list[WorkerState]:
        usable = several
        if self._may_be_full:
            usable = [worker for worker in usable if len(worker.charges) + self._num_left < worker.room]
        if excluded:
            usable = [worker for worker in usable if worker.worker not in excluded]
        if self._has_lost_engines:
            usable = _without_blamed_requests(usable) or usable
        return usable


def _in_rotation(
    usable: list[WorkerState], placement_input: PlacementInput, num_placed: int, *, are_few: bool
) -> list[WorkerState]:
    """All of the workers, or every n-th one and those that hold most of the prompt. Each placement begins with another
    one, so that the first of equal workers is not always the same.
    """
    if not are_few or len(usable) <= SHORTLIST:
        return _from(usable, num_placed)
    step = len(usable) // SHORTLIST
    few = _from(usable[num_placed % step :: step], num_placed // step)
    if placement_input.hits:
        few += [worker for worker in _holders(usable, placement_input.hits) if worker not in few]
    return few


def _from(several: list[WorkerState], number: int) -> list[WorkerState]:
    start = number % len(several) if several else 0
    return several[start:] + several[:start]


def _holders(workers: list[WorkerState], hits: dict[WorkerId, Hit]) -> list[WorkerState]:
    """The first MAX_HOLDERS workers that hold most of the prompt."""
    most, holders = 1, list[WorkerState]()
    for worker in workers:
        hit = hits.get(worker.worker)
        if hit is None or hit.num_blocks < most:
            continue
        if hit.num_blocks > most:
            most, holders = hit.num_blocks, []
        if len(holders) < MAX_HOLDERS:
            holders.append(worker)
    return holders


def _without_blamed_requests(workers: list[WorkerState]) -> list[WorkerState]:
    """Workers without a request that an engine was lost with. One such request may be the reason: placed alone, it
    stops the next engine without harm to others.
    """
    return [worker for worker in workers if not any(charge.num_engines_lost for charge in worker.charges.values())]

"""What a placement policy gets and gives: the workers that a request may use, and the workers that it is to use."""

from collections.abc import Callable
from typing import final

from cluster.messages.ids import Path, WorkerId
from cluster.messages.placement import Prediction
from router.load.charge import Work
from router.load.live_workers import WorkersByPool
from router.load.worker_state import WorkerState
from router.placement.placement_input import PlacementInput
from router.prediction.learned_latency import LatencyModels
from router.trust.suspected_pairs import Pair


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
        "decodes",
        "may_hand_over",
        "may_prefill_alone",
        "may_stay",
        "prefills",
        "stale_share",
        "suspects",
        "wish",
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
        """`path`: the only path that the request may take, or None. `suspects`: pairs that hand nothing over."""
        self.prefills = prefills
        self.decodes = decodes
        self.stale_share = stale_share
        self.suspects = suspects
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
        return prefill.worker in decode.links and not self.is_suspect(prefill, decode)

    def is_suspect(self, prefill: WorkerState, decode: WorkerState) -> bool:
        return bool(self.suspects) and (prefill.worker, decode.worker) in self.suspects


Policy = Callable[[PlacementInput, Candidates, LatencyModels], Choice | None]
"""Returns None if no worker can take the request."""


def candidates_of(
    placement_input: PlacementInput,
    workers: WorkersByPool,
    suspects: frozenset[Pair],
    unreachable: frozenset[WorkerId],
    num_placed: int,
) -> Candidates:
    """Workers that have room and that the request has not failed on. `unreachable`: workers that the request's ingress
    could not reach lately, for requests that no other worker can take. `num_placed`: placements so far.
    """
    request = placement_input.request
    return Candidates(
        request.path,
        _first_usable(workers.prefills, workers.stale_prefills, placement_input, workers, unreachable, num_placed),
        _first_usable(workers.decodes, workers.stale_decodes, placement_input, workers, unreachable, num_placed),
        workers.stale_share,
        suspects,
        request.can_hand_over,
    )


def _first_usable(
    fresh: list[WorkerState],
    stale: list[WorkerState],
    placement_input: PlacementInput,
    workers: WorkersByPool,
    unreachable: frozenset[WorkerId],
    num_placed: int,
) -> list[WorkerState]:
    excluded = placement_input.request.excluded
    if unreachable:
        without = excluded | unreachable
        usable = _usable(fresh, placement_input, workers, without, num_placed)
        if usable or (usable := _usable(stale, placement_input, workers, without, num_placed)):
            return usable
    return _usable(fresh, placement_input, workers, excluded, num_placed) or _usable(
        stale, placement_input, workers, excluded, num_placed
    )


def _usable(
    several: list[WorkerState],
    placement_input: PlacementInput,
    workers: WorkersByPool,
    excluded: frozenset[WorkerId],
    num_placed: int,
) -> list[WorkerState]:
    """In rotation, so that the first of equal workers is not always the same one."""
    usable = several
    if num_placed >= workers.room_until:
        usable = [worker for worker in usable if len(worker.charges) < worker.room]
    if excluded:
        usable = [worker for worker in usable if worker.worker not in excluded]
    if placement_input.request.num_engines_lost:
        usable = _without_suspects(usable) or usable
    start = num_placed % len(usable) if usable else 0
    return usable[start:] + usable[:start]


def _without_suspects(workers: list[WorkerState]) -> list[WorkerState]:
    """Workers without a request that an engine was lost with. One such request may be the reason: placed alone, it
    stops the next engine without harm to others.
    """
    return [worker for worker in workers if not any(charge.num_engines_lost for charge in worker.charges.values())]

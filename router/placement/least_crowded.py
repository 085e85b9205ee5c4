"""Which workers could generate a request's answer with the least delay for the requests that they have."""

from math import inf
from typing import Final, final

from router.load.worker_state import WorkerState
from router.placement.placement_input import PlacementInput

NUM_DECODE_CANDIDATES: Final = 4
"""Workers, of either pool, that are priced to generate a request's answer. Higher costs time for each placement; lower
misses the cheapest.
"""


def least_crowded(placement_input: PlacementInput, workers: list[WorkerState]) -> list[WorkerState]:
    """The workers with the least crowding (`WorkerState.crowding_s`). Those with enough memory come first."""
    now, need = placement_input.now, placement_input.kv_tokens
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
    """Insert a worker by its crowding, and keep the NUM_DECODE_CANDIDATES least crowded ones."""
    place = len(several)
    while place and several[place - 1].crowding_s > crowding_s:
        place -= 1
    several.insert(place, _Crowded(worker, crowding_s))
    if len(several) > NUM_DECODE_CANDIDATES:
        several.pop()

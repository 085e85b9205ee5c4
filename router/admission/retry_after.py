"""When a request that was refused for load should come back: the value of its Retry-After. A request that no worker
can take at all gets NO_WORKER_RETRY_S (router/placement/no_candidates.py). Refusals for other reasons have a
RETRY_AFTER_S where they are decided.

Refused requests are given different times. Each is given a retry slot behind the slots that were given before, in the
room that the load leaves of the service. So requests that come back find room, and do not meet each other again.
"""

from math import ceil
from typing import Final, final

from cluster.messages.ids import SloClass
from cluster.messages.placement import Prediction
from router.load.worker_state import WorkerState
from router.placement.cost import MARGIN, TPOT_MARGIN, stretched
from router.placement.placement_input import PlacementInput
from router.placement.work import DecodePart
from router.prediction.decaying import DecayingSum, remaining

LEAST_RETRY_S, MOST_RETRY_S = 1.0, 60.0
"""Bounds of Retry-After, in seconds. Lower has clients come back for nothing; higher keeps them away from room."""
MOST_BUSY: Final = 0.95
"""Share of their time up to which workers are taken to be busy with new requests. Higher predicts very long waits under
overload; lower predicts waits that are too short.
"""
FULL: Final = 0.95
"""Share of the capacity that requests which come back may fill. Higher has chance alone refuse some of them again;
lower keeps them away from room.
"""
OFFERED_S, ADMITTED_S, CAPACITY_S = 30.0, 2.0, 60.0
"""Seconds over which requests are averaged: requests that come; requests that are admitted; and the time for which the
highest rate of admission is taken for the capacity. Longer takes bursts for little, and follows a change of load later;
shorter takes chance for a change of load, so that retry slots are too early or too late.
"""


@final
class Rate:
    """Mean number per second over about the last `window_s`, or since the first."""

    __slots__ = ("_began_at", "_recent")

    def __init__(self, window_s: float) -> None:
        self._recent = DecayingSum(window_s)
        self._began_at: float | None = None

    def note(self, now: float) -> None:
        if self._began_at is None:
            self._began_at = now
        self._recent.add(1.0, now)

    def take_back(self, now: float) -> None:
        """One that was noted lately does not count."""
        self._recent.add(-1.0, now)

    def per_s(self, now: float) -> float:
        if self._began_at is None:
            return 0.0
        window_s, seen_s = self._recent.window_s, max(now - self._began_at, 1.0)
        return max(0.0, self._recent.at(now)) / (window_s * (1.0 - remaining(seen_s, window_s)))


@final
class RetrySlots:
    """When refused requests are to come back, by class. A slot is free after all slots that were given before."""

    __slots__ = ("_admitted", "_capacity_at", "_capacity_per_s", "_next_at", "_offered")

    def __init__(self) -> None:
        self._offered = {slo_class: Rate(OFFERED_S) for slo_class in SloClass}
        self._admitted = Rate(ADMITTED_S)
        self._capacity_per_s = 0.0
        """The highest rate of admission lately."""
        self._capacity_at = 0.0
        self._next_at = dict.fromkeys(SloClass, 0.0)

    def offered(self, slo_class: SloClass, now: float) -> None:
        self._offered[slo_class].note(now)

    def withdraw(self, slo_class: SloClass, now: float) -> None:
        """A request that was offered does not count: it can never be served in time."""
        self._offered[slo_class].take_back(now)

    def admitted(self, now: float) -> None:
        self._admitted.note(now)
        self._capacity_per_s = max(self.capacity_per_s(now), self._admitted.per_s(now))
        self._capacity_at = now

    def take(self, slo_class: SloClass, wait_s: float, now: float) -> float:
        """Seconds until the retry slot of a refused request. `wait_s`: seconds until there is room for this request
        alone.
        """
        capacity = self.capacity_per_s(now)
        others = sum(rate.per_s(now) for other, rate in self._offered.items() if other.rank <= slo_class.rank)
        spare_per_s = max(FULL * capacity - others, (1.0 - MOST_BUSY) * capacity, 1.0 / MOST_RETRY_S)
        slot_at = max(now + wait_s, self._next_at[slo_class] + 1.0 / spare_per_s)
        self._next_at[slo_class] = slot_at = min(slot_at, now + MOST_RETRY_S)
        return slot_at - now

    def capacity_per_s(self, now: float) -> float:
        """The highest rate of admission lately, in requests per second."""
        return self._capacity_per_s * remaining(now - self._capacity_at, CAPACITY_S)


def wait_s(
    placement_input: PlacementInput, prediction: Prediction, generating: WorkerState, load: float, num_before: int
) -> float:
    """Seconds until the request is expected to meet its SLO without harm to others. Until then queues drain, as far as
    new requests let them, and running requests of the worker that is to generate end. A request that would be in time,
    but at the cost of others, needs room for its own work.

    `load`: share of the workers' time that placements take, in [0, 1]; `num_before`: requests that are served before.
    """
    late_s = max(0.0, prediction.ttft_s - placement_input.age_s - MARGIN * placement_input.slo_ttft_s)
    if prediction.victims + prediction.future_victims > prediction.risk:
        late_s = max(late_s, prediction.gpu_s)
    draining_s = late_s / (1.0 - min(MOST_BUSY, load))
    decoding_s = _until_fast(placement_input, DecodePart(placement_input, generating))
    return max(draining_s, decoding_s) * (1.0 + num_before / 10.0)


def retry_after_s(wait_s: float, jitter: float) -> float:
    """Retry-After, in whole seconds. `jitter`, in [0, 1), spreads the requests that come back over +-20 %."""
    spread = wait_s * (0.8 + 0.4 * jitter)
    return float(ceil(min(max(spread, LEAST_RETRY_S), MOST_RETRY_S)))


def _until_fast(placement_input: PlacementInput, decode: DecodePart) -> float:
    """Seconds until enough running requests have ended for the request's TPOT, and for its memory."""
    wait = decode.memory_wait_s()
    usual, objective_s = placement_input.outputs[1], TPOT_MARGIN * placement_input.slo_tpot_s
    for finish_s in (0.0, *decode.slack.finish_s):
        step_s = decode.step_with(placement_input, finish_s)
        longest_s = decode.longest_step_s(placement_input, step_s)
        if stretched(step_s, usual, decode.stall_share, longest_s) <= objective_s:
            return max(wait, finish_s)
    return max(wait, decode.slack.finish_s[-1] if decode.slack.finish_s else 0.0)

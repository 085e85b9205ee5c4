"""When a refused request would be let in: what Retry-After says.

Those who are refused are told different times: each is given a turn behind those that have been told one before, in
what the load leaves of the service. So those who come back find room, and do not meet each other again.
"""

from math import ceil, exp
from typing import Final, final

from cluster.messages.ids import SloClass
from cluster.messages.placement import Prediction
from router.load.worker_state import WorkerState
from router.placement.cost import MARGIN, stretched
from router.placement.placement_input import PlacementInput
from router.placement.work import DecodePart

LEAST_RETRY_S, MOST_RETRY_S = 1.0, 60.0
MOST_BUSY: Final = 0.95
FULL: Final = 0.85
"""Share of the capacity that those who come back may fill: at more, chance alone has some of them refused again."""
OFFERED_S, ADMITTED_S, CAPACITY_S = 30.0, 2.0, 60.0
"""Over which requests are averaged: those that come, for what is to come is like the last half minute rather than like
a burst; those that are let in; and how long the most of these is taken for what the service can do.
"""


@final
class Rate:
    """Mean number per second over about the last `window_s`, or since the first."""

    __slots__ = ("_at", "_began_at", "_recent", "_window_s")

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._recent = self._at = 0.0
        self._began_at: float | None = None

    def note(self, now: float) -> None:
        if self._began_at is None:
            self._began_at = self._at = now
        self._recent = self._recent * exp((self._at - now) / self._window_s) + 1.0
        self._at = now

    def per_s(self, now: float) -> float:
        if self._began_at is None:
            return 0.0
        seen_s = max(now - self._began_at, 1.0) / self._window_s
        return self._recent * exp((self._at - now) / self._window_s) / (self._window_s * (1.0 - exp(-seen_s)))


@final
class RetrySlots:
    """When those who were refused are to come again, by class: the next one after all who were told before."""

    __slots__ = ("_admitted", "_capacity_at", "_capacity_per_s", "_next_at", "_offered")

    def __init__(self) -> None:
        self._offered = {slo_class: Rate(OFFERED_S) for slo_class in SloClass}
        self._admitted = Rate(ADMITTED_S)
        self._capacity_per_s = 0.0
        """The most that were let in lately."""
        self._capacity_at = 0.0
        self._next_at = dict.fromkeys(SloClass, 0.0)

    def offered(self, slo_class: SloClass, now: float) -> None:
        self._offered[slo_class].note(now)

    def admitted(self, now: float) -> None:
        self._admitted.note(now)
        self._capacity_per_s = max(self._capacity(now), self._admitted.per_s(now))
        self._capacity_at = now

    def take(self, slo_class: SloClass, wait_s: float, now: float) -> float:
        """Seconds until the turn of one that is refused. `wait_s`: until there is room, were it alone."""
        capacity = self._capacity(now)
        others = sum(rate.per_s(now) for other, rate in self._offered.items() if other.rank <= slo_class.rank)
        spare_per_s = max(FULL * capacity - others, (1.0 - MOST_BUSY) * capacity, 1.0 / MOST_RETRY_S)
        turn_at = max(now + wait_s, self._next_at[slo_class] + 1.0 / spare_per_s)
        self._next_at[slo_class] = turn_at = min(turn_at, now + MOST_RETRY_S)
        return turn_at - now

    def _capacity(self, now: float) -> float:
        return self._capacity_per_s * exp((self._capacity_at - now) / CAPACITY_S)


def wait_s(
    placement_input: PlacementInput, prediction: Prediction, generating: WorkerState, load: float, num_before: int
) -> float:
    """Until the request could be expected to meet its SLO: queues that are too long drain, as far as those who come
    meanwhile let them, and residents of the worker that is to generate end.

    `load`: share of the workers' time that placements take, in [0, 1]; `num_before`: who waits before it.
    """
    late_s = max(0.0, prediction.ttft_s - placement_input.age_s - MARGIN * placement_input.slo_ttft_s)
    draining_s = late_s / (1.0 - min(MOST_BUSY, load))
    decoding_s = _until_fast(placement_input, DecodePart(placement_input, generating))
    return max(draining_s, decoding_s) * (1.0 + num_before / 10.0)


def retry_after_s(wait_s: float, jitter: float) -> float:
    """Whole seconds. `jitter` in [0, 1) spreads those who come back over +-20 %."""
    spread = wait_s * (0.8 + 0.4 * jitter)
    return float(ceil(min(max(spread, LEAST_RETRY_S), MOST_RETRY_S)))


def _until_fast(placement_input: PlacementInput, decode: DecodePart) -> float:
    """Until enough residents have ended for the request's TPOT, and for its memory."""
    wait = decode.memory_wait_s()
    for finish_s in (0.0, *decode.slack.finish_s):
        if (
            stretched(decode.step_with(placement_input, finish_s), placement_input.outputs[1], decode.prefill_share)
            <= MARGIN * placement_input.slo_tpot_s
        ):
            return max(wait, finish_s)
    return max(wait, decode.slack.finish_s[-1] if decode.slack.finish_s else 0.0)

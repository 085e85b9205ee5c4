"""What the requests that decode on a worker can still afford, summed up so that a placement can be weighed against it
in a few microseconds.

The slack of a resident is the time by which the rest of its decoding may be delayed until its TPOT exceeds its
objective: budget - elapsed - predicted rest. The budget is the objective times the expected number of gaps between its
tokens.
"""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from math import exp
from typing import NamedTuple

from cluster.types import SloClass
from router.duty import WINDOWS_S, Shares

SOFTNESS = 0.2
"""Of every threshold, as a share of what it is about: predictions are not exact."""
HIGH_CLASS_WEIGHT = 4.0
"""A victim of a higher class counts so much more."""
NUM_BINS = 16

CLASS_RANK = {SloClass.BATCH: 0, SloClass.STANDARD: 1, SloClass.INTERACTIVE: 2}

Resident = tuple[float, float, float, float, int]
"""A request that decodes: its budget and what it has used of it (seconds), tokens still to come, KV tokens, and the
rank of its class.
"""


class _Bin(NamedTuple):
    """Residents whose chances are alike."""

    slack_s: float
    softness_s: float
    num_left: float
    miss: float
    """Probability that one of them misses its objective as things are."""
    weights: tuple[float, float, float]
    """How many they are to a new request, by the rank of its class."""


class Outlook(NamedTuple):
    bins: tuple[_Bin, ...]
    finish_s: tuple[float, ...]
    """When the residents are expected to end, from now, in order."""
    freed_tokens: tuple[float, ...]
    """KV tokens that they leave by then, cumulated; starts with 0."""

    def finished_by(self, after_s: float) -> tuple[int, float]:
        """How many will have ended by then, and their KV tokens."""
        number = bisect_right(self.finish_s, after_s)
        return number, self.freed_tokens[number]

    def victims(self, stall_s: float, slowdown_s: float, slo_class: SloClass) -> float:
        """Residents that would miss their TPOT objective because of a new request of this class, which stalls them once
        by `stall_s` and lengthens every later step by `slowdown_s`.
        """
        rank = CLASS_RANK[slo_class]
        total = 0.0
        for slack_s, softness_s, num_left, miss, weights in self.bins:
            late = (stall_s + slowdown_s * num_left - slack_s) / softness_s
            if late > -8.0:
                total += weights[rank] * (logistic(late) - miss)
        return total


NOTHING = Outlook((), (), (0.0,))


def look_ahead(residents: Iterable[Resident], step_s: float, duty: Shares) -> Outlook:
    """`step_s`: what a step takes; `duty`: the shares of the time that prompts take (router/duty.py)."""
    bins: list[list[float] | None] = [None] * NUM_BINS
    finishing = []
    short_s, middle_s, _ = WINDOWS_S
    short, middle, long = [step_s / (1.0 - share) for share in duty]
    for budget_s, elapsed_s, num_left, context_tokens, rank in residents:
        alone_s = num_left * step_s
        rest_s = num_left * (short if alone_s <= short_s else middle if alone_s <= middle_s else long)
        slack_s = budget_s - elapsed_s - rest_s
        finishing.append((rest_s, context_tokens + num_left))
        number = int((slack_s / budget_s + 0.5) * (NUM_BINS / 1.5)) if budget_s > 0.0 else 0
        if number < 0:
            number = 0
        elif number >= NUM_BINS:
            number = NUM_BINS - 1
        sums = bins[number]
        if sums is None:
            sums = bins[number] = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
        sums[rank] += 1.0
        sums[3] += slack_s
        sums[4] += budget_s
        sums[5] += num_left
    if not finishing:
        return NOTHING
    finishing.sort()
    freed = tuple(accumulate([tokens for _, tokens in finishing], initial=0.0))
    return Outlook(tuple(_bin(sums) for sums in bins if sums), tuple([rest_s for rest_s, _ in finishing]), freed)


def logistic(x: float) -> float:
    if x > 30.0:
        return 1.0
    return 0.0 if x < -30.0 else 1.0 / (1.0 + exp(-x))


def class_weight(victim: SloClass, newcomer: SloClass) -> float:
    """What a victim counts against a new request."""
    return HIGH_CLASS_WEIGHT if CLASS_RANK[victim] > CLASS_RANK[newcomer] else 1.0


def _bin(sums: list[float]) -> _Bin:
    """`sums`: numbers by rank, slack, budget, tokens to come."""
    low, middle, high, slack_s, budget_s, num_left = sums
    num = low + middle + high
    softness_s = SOFTNESS * max(budget_s / num, 1e-3)
    weights = (
        low + HIGH_CLASS_WEIGHT * (middle + high),
        low + middle + HIGH_CLASS_WEIGHT * high,
        num,
    )
    return _Bin(slack_s / num, softness_s, num_left / num, logistic(-slack_s / num / softness_s), weights)

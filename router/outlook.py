"""What the requests that decode on a worker can still afford, summed up so that a placement can be weighed against it
in a few microseconds.

The slack of a resident is the time by which the rest of its decoding may be delayed until its TPOT exceeds its
objective: budget - elapsed - predicted rest, where the budget is the objective times the expected number of gaps between
tokens.
"""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from math import exp
from typing import NamedTuple

from cluster.types import SloClass

SOFTNESS = 0.2
"""Of every threshold, as a share of what it is about: predictions are not exact."""
HIGH_CLASS_WEIGHT = 4.0
"""A victim of a higher class counts so much more."""
NUM_BINS = 16
_CLASS_RANK = {SloClass.BATCH: 0, SloClass.STANDARD: 1, SloClass.INTERACTIVE: 2}


class Resident(NamedTuple):
    """One request that decodes."""

    budget_s: float
    elapsed_s: float
    num_left: float
    context_tokens: float
    slo_class: SloClass


class _Bin(NamedTuple):
    """Residents whose chances are alike."""

    slack_s: float
    softness_s: float
    num_left: float
    miss: float
    """Probability that one of them misses its objective as things are."""
    weights: tuple[float, float, float]
    """How many there are, as a new request of each class counts them, lowest class first."""


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
        """Residents that would miss their TPOT objective because of a new request of this class which stalls them once
        by `stall_s`, and lengthens every later step by `slowdown_s`.
        """
        rank = _CLASS_RANK[slo_class]
        total = 0.0
        for slack_s, softness_s, num_left, miss, weights in self.bins:
            delay_s = stall_s + slowdown_s * num_left
            total += weights[rank] * (logistic((delay_s - slack_s) / softness_s) - miss)
        return total


NOTHING = Outlook((), (), (0.0,))


def look_ahead(residents: Iterable[Resident], step_s: float) -> Outlook:
    """`step_s`: what a step is expected to take from now on."""
    rows = []
    for resident in residents:
        rest_s = resident.num_left * step_s
        slack_s = resident.budget_s - resident.elapsed_s - rest_s
        rows.append((slack_s / resident.budget_s, slack_s, rest_s, resident))
    if not rows:
        return NOTHING
    by_finish = sorted((rest_s, resident.context_tokens + resident.num_left) for _, _, rest_s, resident in rows)
    rows.sort(key=_relative_slack)
    size = -(-len(rows) // NUM_BINS)
    bins = tuple(_bin(rows[start : start + size]) for start in range(0, len(rows), size))
    freed = tuple(accumulate((tokens for _, tokens in by_finish), initial=0.0))
    return Outlook(bins, tuple(rest_s for rest_s, _ in by_finish), freed)


def logistic(x: float) -> float:
    if x > 30.0:
        return 1.0
    return 0.0 if x < -30.0 else 1.0 / (1.0 + exp(-x))


def class_weight(victim: SloClass, newcomer: SloClass) -> float:
    """What a victim counts against a new request."""
    return HIGH_CLASS_WEIGHT if _CLASS_RANK[victim] > _CLASS_RANK[newcomer] else 1.0


def _bin(rows: list[tuple[float, float, float, Resident]]) -> _Bin:
    num = len(rows)
    slack_s = sum(row[1] for row in rows) / num
    softness_s = SOFTNESS * sum(row[3].budget_s for row in rows) / num
    weights = [0.0, 0.0, 0.0]
    for *_, resident in rows:
        for newcomer, rank in _CLASS_RANK.items():
            weights[rank] += class_weight(resident.slo_class, newcomer)
    return _Bin(
        slack_s,
        softness_s,
        sum(row[3].num_left for row in rows) / num,
        logistic(-slack_s / softness_s),
        (weights[0], weights[1], weights[2]),
    )


def _relative_slack(row: tuple[float, float, float, Resident]) -> float:
    return row[0]

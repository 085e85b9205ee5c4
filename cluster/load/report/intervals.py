"""Confidence intervals of shares and quantiles of requests, which are not independent. Pure.

Requests that follow each other meet the same queue. A block is a run of consecutive requests. How much the shares of
blocks differ, over how much they would if requests were independent, is the design effect: by that factor the requests
tell less than their number. It is known only as well as so few blocks tell, which the t distribution allows for.

The interval of a share is that of Clopper and Pearson for the effective number of requests, as Korn and Graubard have
it. The interval of a quantile lies between two of the values in order, whose ranks follow from the binomial
distribution of how many values are below the quantile. It assumes nothing of the values' distribution. Both are known
to hold the truth at least as often as they say, even near 0, near 1 and in a tail.
"""

from collections.abc import Sequence
from math import ceil, floor, inf

import msgspec

from cluster.load.report.distributions import beta_quantile, most_below, t_quantile

CONFIDENCE = 0.95
NUM_BLOCKS = 10
"""Most blocks. More are shorter, and take what neighbours have in common for chance; fewer know the design effect less,
and make intervals wider.
"""
LEAST_IN_BLOCK = 5
"""Requests of a block, where there are as many as for two blocks. Fewer make blocks of single requests."""
_TAIL = (1 - CONFIDENCE) / 2


class Estimate(msgspec.Struct, frozen=True):
    """A value with its confidence interval."""

    value: float
    low: float
    high: float | None
    """None: there are too few requests for an upper end."""

    def scaled(self, factor: float) -> "Estimate":
        return Estimate(self.value * factor, self.low * factor, None if self.high is None else self.high * factor)

    @property
    def upper(self) -> float:
        return inf if self.high is None else self.high


def blocks_of(number: int) -> list[int]:
    """The block of each of `number` requests in order."""
    num_blocks = max(1, min(NUM_BLOCKS, number // LEAST_IN_BLOCK))
    return [index * num_blocks // number for index in range(number)]


def share(is_good: Sequence[bool]) -> Estimate:
    """The share of those that are good, of requests in order."""
    if not is_good:
        return Estimate(0.0, 0.0, 1.0)
    value = sum(is_good) / len(is_good)
    number = effective_number(is_good)
    good, bad = value * number, (1 - value) * number
    low = beta_quantile(good, bad + 1, _TAIL) if good else 0.0
    high = beta_quantile(good + 1, bad, 1 - _TAIL) if bad else 1.0
    return Estimate(value, min(low, value), max(high, value))


def quantile_estimates(values: Sequence[float], probabilities: Sequence[float]) -> list[Estimate]:
    """Quantiles of times that are in the order of their requests. There is at least one time."""
    ordered = sorted(values)
    return [_quantile(values, ordered, probability) for probability in probabilities]


def effective_number(is_good: Sequence[bool]) -> float:
    """How many independent requests would tell as much of the share as these do. If all are alike, nothing tells of
    dependence, and they count in full.
    """
    number, good = len(is_good), sum(is_good)
    blocks = blocks_of(number)
    num_blocks = blocks[-1] + 1
    if num_blocks == 1 or good in (0, number):
        return float(number)
    value = good / number
    surplus = [0.0] * num_blocks
    for block, one in zip(blocks, is_good, strict=True):
        surplus[block] += one - value
    variance = num_blocks / (num_blocks - 1) * sum(one * one for one in surplus) / number**2
    effect = max(1.0, variance * number / (value * (1 - value)))
    few = t_quantile(number - 1, 1 - _TAIL) / t_quantile(num_blocks - 1, 1 - _TAIL)
    return number / effect * few**2


def _quantile(values: Sequence[float], ordered: Sequence[float], probability: float) -> Estimate:
    number = len(ordered)
    value = ordered[min(number, int(probability * number) + 1) - 1]  # as `quantile` of the simulator's summary
    effective = max(1, floor(effective_number([one <= value for one in values])))
    low_rank = most_below(effective, probability, _TAIL) + 1
    high_rank = most_below(effective, probability, 1 - _TAIL) + 2
    low = ordered[floor(low_rank * number / effective) - 1] if low_rank else 0.0
    high = ordered[ceil(high_rank * number / effective) - 1] if high_rank <= effective else None
    return Estimate(value, min(low, value), None if high is None else max(high, value))

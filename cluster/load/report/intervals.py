"""Confidence intervals of shares and quantiles, by a bootstrap over blocks of requests. Pure.

Requests that follow each other meet the same queue, so they are no independent samples. A block is a run of consecutive
requests, and a resample takes whole blocks. With few blocks the interval is wide, as it should be.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

import msgspec

CONFIDENCE = 0.95
NUM_BLOCKS = 20
"""Most blocks. More are shorter, and take what neighbours have in common for chance; fewer make intervals uncertain."""
LEAST_IN_BLOCK = 5
"""Requests of a block, where there are as many as for two blocks. Fewer make blocks of single requests."""
MOST_RESAMPLES, LEAST_RESAMPLES = 500, 100
"""Resamples. More make the ends of an interval steadier, and take longer."""
MOST_VALUES = 4_000_000
"""Values that are summed in all resamples together. More take longer; fewer use fewer resamples of long loads."""


class Choices(Protocol):
    """A source of random numbers, as random.Random is."""

    def choices(self, population: Sequence[int], *, k: int) -> list[int]: ...


class Estimate(msgspec.Struct, frozen=True):
    """A value with its confidence interval."""

    value: float
    low: float
    high: float

    def scaled(self, factor: float) -> "Estimate":
        return Estimate(self.value * factor, self.low * factor, self.high * factor)


def blocks_of(number: int) -> list[int]:
    """The block of each of `number` requests in order."""
    num_blocks = max(1, min(NUM_BLOCKS, number // LEAST_IN_BLOCK))
    return [index * num_blocks // number for index in range(number)]


def share(is_good: Sequence[bool], chance: Choices) -> Estimate:
    """The share of those that are good, of requests in order."""
    if not is_good:
        return Estimate(0.0, 0.0, 0.0)
    blocks = blocks_of(len(is_good))
    num_blocks = blocks[-1] + 1
    good, total = [0] * num_blocks, [0] * num_blocks
    for block, one in zip(blocks, is_good, strict=True):
        good[block] += one
        total[block] += 1
    found = []
    for _ in range(MOST_RESAMPLES):
        chosen = chance.choices(range(num_blocks), k=num_blocks)
        found.append(sum(good[block] for block in chosen) / sum(total[block] for block in chosen))
    return _estimate(sum(good) / len(is_good), found, least_width=1 / len(is_good))


def quantile_estimates(values: Sequence[float], probabilities: Sequence[float], chance: Choices) -> list[Estimate]:
    """Quantiles of values that are in the order of their requests. There is at least one value."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ordered = [values[index] for index in order]
    blocks = blocks_of(len(values))
    block_of = [blocks[index] for index in order]
    num_blocks = blocks[-1] + 1
    num_resamples = max(LEAST_RESAMPLES, min(MOST_RESAMPLES, MOST_VALUES // len(values)))
    found: list[list[float]] = [[] for _ in probabilities]
    for _ in range(num_resamples):
        times = [0] * num_blocks
        for block in chance.choices(range(num_blocks), k=num_blocks):
            times[block] += 1
        ranks = list(accumulate(map(times.__getitem__, block_of)))
        for places, probability in zip(found, probabilities, strict=True):
            places.append(ordered[bisect_left(ranks, _rank(ranks[-1], probability))])
    return [
        _estimate(ordered[_rank(len(ordered), probability) - 1], places)
        for probability, places in zip(probabilities, found, strict=True)
    ]


def _rank(number: int, probability: float) -> int:
    """Rank, from 1, of the value at a probability. It is that of `quantile` of the simulator's summary."""
    return min(number, int(probability * number) + 1)


def _estimate(value: float, found: list[float], least_width: float = 0.0) -> Estimate:
    """`least_width`: half of the narrowest interval. All blocks may be alike by chance."""
    found.sort()
    tail = (1 - CONFIDENCE) / 2
    low, high = found[int(tail * len(found))], found[min(len(found) - 1, int((1 - tail) * len(found)))]
    if least_width:
        low, high = max(0.0, min(low, value - least_width)), min(1.0, max(high, value + least_width))
    return Estimate(value, low, high)

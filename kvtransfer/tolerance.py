"""The tolerance of the check of handoffs, learned from the distances that were seen. Pure.

The tolerance is MARGIN times the QUANTILE of the latest honest distances (kvtransfer/verify.py). It lies between
MIN_TOLERANCE and `verify.MAX_TOLERANCE`. The distances are counted in bins of equal width on a logarithmic scale.
Counts decay by one sample's share with each new sample (exponentially weighted histogram). Before there are samples,
PRIOR_WEIGHT samples stand for what the kind of model is known to do.

A quantile is robust: a share of samples below 1 - QUANTILE can be anything, and one sample has the weight of one
(Huber and Ronchetti, Robust Statistics, section 1.4: the breakdown point of a quantile). The margin extends the
quantile to the tail. For the largest of `verify.NUM_TOP` differences, the distance that one honest check in a million
exceeds is 2.0 times the 95 % quantile if the differences are normal, and 3.4 times if they are Laplace. A check beyond
the tolerance convicts nobody: a third opinion and a second check do.

Only honest distances may be observed: those within the tolerance, and those that a third opinion has cleared. With the
second kind a prior that is too low is corrected.
"""

from math import isfinite, log2
from typing import Final, final

from kvtransfer.verify import MAX_TOLERANCE

QUANTILE: Final = 0.95
"""Quantile of the distances that the tolerance follows. Higher lets fewer wrong handoffs raise it; lower says less
about the tail.
"""

MARGIN: Final = 3.0
"""Tolerance, as a multiple of the quantile. Higher misses handoffs with few wrong blocks; lower computes more prompts
again.
"""

MIN_TOLERANCE: Final = 0.3
"""Smallest tolerance, in nats. One rounding of a bfloat16 logit near 32 is 0.25 nats, even if it has not been seen for
long. Higher misses handoffs with few wrong blocks; lower computes prompts again for one rounding.
"""

PRIOR_TOLERANCE: Final = 1.0
"""Tolerance of an unknown model whose KV and activations have 16 bits, in nats. Higher misses wrong handoffs of a new
model; lower computes more prompts again until the tolerance is learned.
"""

PRIOR_WEIGHT: Final = 3.0
"""Samples that the prior counts for. With more, the tolerance of a model that rounds finely falls later: it falls after
PRIOR_WEIGHT / (1 - QUANTILE) checks. With fewer, chance decides in the beginning.
"""

MEMORY: Final = 1000.0
"""Number of the latest samples that count. More follows a new version of a model later; fewer follows chance."""

BINS_PER_OCTAVE: Final = 4
"""Bins by which a distance doubles. The tolerance is rounded up by a bin. More takes time for each sample."""

MIN_DISTANCE: Final = 2.0**-8
"""Distances up to this one share a bin, in nats. It has no effect while MARGIN times it is below MIN_TOLERANCE."""

NUM_BINS: Final = 1 + 9 * BINS_PER_OCTAVE
"""Enough to reach from MIN_DISTANCE to MAX_TOLERANCE, which is 9 octaves higher."""


@final
class LearnedTolerance:
    """The tolerance of the handoffs between engines of two kinds."""

    __slots__ = ("_counts", "_total", "value")

    value: float
    """The tolerance now, in nats."""

    def __init__(self, *, rounds_coarsely: bool) -> None:
        """`rounds_coarsely`: as `EngineShape.rounds_coarsely`. The prior is then the largest tolerance."""
        self._counts = [0.0] * NUM_BINS
        prior = MAX_TOLERANCE if rounds_coarsely else PRIOR_TOLERANCE
        self._counts[_bin_of(prior / MARGIN)] = PRIOR_WEIGHT
        self._total = PRIOR_WEIGHT
        self.value = self._learned()

    def observe(self, distance: float) -> None:
        """Learn from an honest distance. A distance that is negative or no number, or beyond what can be honest, says
        nothing.
        """
        if not isfinite(distance) or not 0.0 <= distance <= MAX_TOLERANCE:
            return
        if self._total >= MEMORY:
            left = (MEMORY - 1.0) / self._total
            self._counts = [count * left for count in self._counts]
            self._total = MEMORY - 1.0
        self._counts[_bin_of(distance)] += 1.0
        self._total += 1.0
        self.value = self._learned()

    def _learned(self) -> float:
        below, number = 0.0, 0
        for count in self._counts:
            below += count
            if below >= QUANTILE * self._total:
                break
            number += 1
        return min(MAX_TOLERANCE, max(MIN_TOLERANCE, MARGIN * _upper_end(number)))


def _bin_of(distance: float) -> int:
    if distance <= MIN_DISTANCE:
        return 0
    # The ends of bins are exact powers of two only at octaves.
    number = int(log2(distance / MIN_DISTANCE) * BINS_PER_OCTAVE)
    return min(NUM_BINS - 1, number if distance <= _upper_end(number) else number + 1)


def _upper_end(number: int) -> float:
    """Upper end of a bin, in nats."""
    return MIN_DISTANCE * float(2.0 ** (number / BINS_PER_OCTAVE))

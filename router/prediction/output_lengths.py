"""How many tokens requests generate, learned for each kind of request. Old requests count less than new ones.

A histogram over logarithmic bins has the answers that placement needs: quantiles of the length, and the number of
tokens that are left for a request that has generated some tokens already.
"""

from bisect import bisect_right
from collections.abc import Hashable
from itertools import accumulate
from typing import Final, final

BIN_RATIO: Final = 1.25
"""Ratio of the edges of a bin. Higher makes quantiles coarse; lower costs CPU and learns each bin more slowly."""
LONGEST: Final = 1 << 17
"""Longest output that is told apart, in tokens. Higher has more bins; lower takes longer outputs for this long."""
HALF_LIFE: Final = 500
"""Ended requests after which a request counts half. Higher follows a change of traffic late; lower follows chance."""
MIN_SAMPLES: Final = 20.0
"""Ended requests of a kind from which the kind has lengths of its own. Higher takes a kind for the mean of all requests
longer; lower follows chance.
"""
MAX_KINDS: Final = 1000
"""Kinds that are remembered. More cost memory; with fewer, kinds are forgotten and count as all requests."""
RESIDUAL_QUANTILE: Final = 0.4
"""Quantile of the tokens that are left for a running request. Higher has every running request bear delay that it
cannot bear; lower has none bear any.
"""

PRIOR_TOKENS = (16, 64, 128, 256, 512)
"""Lengths, in tokens, that stand for all requests before the first request has ended. Longer ones have a new Scheduler
reserve memory that answers do not take; shorter ones have it crowd decode workers.
"""


def _edges() -> list[int]:
    edges = [1]
    while edges[-1] < LONGEST:
        edges.append(max(edges[-1] + 1, int(edges[-1] * BIN_RATIO)))
    return edges


_EDGES = _edges()
"""Shortest length of each bin."""
_USUAL: Final = 4096
"""Length, in tokens, up to which bins are looked up in a table. Higher costs memory; lower costs CPU for each
placement.
"""


@final
class LengthHistogram:
    __slots__ = ("_cumulated", "_residuals", "_weight", "_weights", "num_samples")

    def __init__(self) -> None:
        self._weights = [0.0] * len(_EDGES)
        self._weight = 1.0
        """Weight of the next sample. This weight grows, so that no older weight has to be decayed."""
        self.num_samples = 0.0
        self._cumulated: list[float] | None = None
        self._residuals: dict[int, float] = {}

    def add(self, num_tokens: int) -> None:
        self._weights[_bin(num_tokens)] += self._weight
        self._weight *= 2 ** (1 / HALF_LIFE)
        self.num_samples += 1
        self._cumulated = None
        self._residuals.clear()
        if self._weight > 1e9:
            self._weights = [w / self._weight for w in self._weights]
            self._weight = 1.0

    def quantile(self, share: float) -> float:
        """The length that this share of requests does not exceed."""
        return self._quantile_from(0, share)

    def residual(self, num_generated: int) -> float:
        """Tokens that are left for a request which has generated `num_generated`, at RESIDUAL_QUANTILE. At least 1."""
        start = _bin(num_generated)
        if (known := self._residuals.get(start)) is None:
            known = self._residuals[start] = max(1.0, self._quantile_from(start, RESIDUAL_QUANTILE) - _EDGES[start])
        return known

    def _quantile_from(self, start: int, share: float) -> float:
        if self._cumulated is None:
            self._cumulated = list(accumulate(self._weights, initial=0.0))
        cumulated = self._cumulated
        below, total = cumulated[start], cumulated[-1]
        if total <= below:  # no request has generated as much before: as much again
            return _EDGES[start] * 2.0
        target = below + share * (total - below)
        found = max(start, min(bisect_right(cumulated, target) - 1, len(_EDGES) - 1))
        inside = (target - cumulated[found]) / (self._weights[found] or 1.0)
        upper = _EDGES[found + 1] if found + 1 < len(_EDGES) else _EDGES[found]
        return _EDGES[found] + inside * (upper - _EDGES[found])


@final
class OutputLengths:
    """The lengths of each kind of request, and of all requests. A kind is for example a tenant and an SLO class."""

    __slots__ = ("_all", "_kinds")

    def __init__(self) -> None:
        self._all = LengthHistogram()
        for num_tokens in PRIOR_TOKENS:
            self._all.add(num_tokens)
        self._kinds: dict[Hashable, LengthHistogram] = {}
        """Those whose last request ended longest ago come first, and are forgotten first."""

    def add(self, kind: Hashable, num_tokens: int) -> None:
        """A request of this kind has ended, and was not cut off."""
        if num_tokens < 1:
            return
        self._all.add(num_tokens)
        known = self._kinds.pop(kind, None)
        if known is None and len(self._kinds) >= MAX_KINDS:
            del self._kinds[next(iter(self._kinds))]
        self._kinds[kind] = known = known or LengthHistogram()
        known.add(num_tokens)

    def of(self, kind: Hashable) -> LengthHistogram:
        """The lengths of a kind, or those of all requests if the kind has too few samples."""
        known = self._kinds.get(kind)
        return known if known is not None and known.num_samples >= MIN_SAMPLES else self._all


def _bin(num_tokens: int) -> int:
    return _BINS[num_tokens] if 0 <= num_tokens < _USUAL else max(0, bisect_right(_EDGES, num_tokens) - 1)


_BINS = [max(0, bisect_right(_EDGES, num_tokens) - 1) for num_tokens in range(_USUAL)]
"""The bin of each length below _USUAL."""

"""How many tokens requests generate, learnt from those that have ended: per kind of request, forgetting the old.

A histogram over logarithmic bins answers what placement asks: the usual length, its quantiles, and how much more is to
come of a request that has generated so many tokens already.
"""

from bisect import bisect_right
from collections.abc import Hashable
from itertools import accumulate
from typing import Final, final

BIN_RATIO: Final = 1.25
LONGEST: Final = 1 << 17
"""Tokens; longer outputs count as this long."""
HALF_LIFE: Final = 500
"""Ended requests after which one counts half."""
MIN_SAMPLES: Final = 20.0
"""Of a kind, before it is told apart from all requests."""
MAX_KINDS: Final = 1000
RESIDUAL_QUANTILE: Final = 0.4
"""Of what is left of a running request: rather too short, or every resident seems to have time."""

PRIOR_TOKENS = (16, 64, 128, 256, 512)
"""What the first requests are taken for."""


def _edges() -> list[int]:
    edges = [1]
    while edges[-1] < LONGEST:
        edges.append(max(edges[-1] + 1, int(edges[-1] * BIN_RATIO)))
    return edges


_EDGES = _edges()
"""Shortest length of each bin."""
_USUAL: Final = 4096


@final
class LengthHistogram:
    __slots__ = ("_cumulated", "_residuals", "_weight", "_weights", "num_samples")

    def __init__(self) -> None:
        self._weights = [0.0] * len(_EDGES)
        self._weight = 1.0
        """Of the next sample: grows instead of decaying all others."""
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
        """What is still to come of a request with so many tokens, at RESIDUAL_QUANTILE; at least 1."""
        start = _bin(num_generated)
        if (known := self._residuals.get(start)) is None:
            known = self._residuals[start] = max(1.0, self._quantile_from(start, RESIDUAL_QUANTILE) - _EDGES[start])
        return known

    def _quantile_from(self, start: int, share: float) -> float:
        if self._cumulated is None:
            self._cumulated = list(accumulate(self._weights, initial=0.0))
        cumulated = self._cumulated
        below, total = cumulated[start], cumulated[-1]
        if total <= below:  # nobody has generated so much yet: as much again
            return _EDGES[start] * 2.0
        target = below + share * (total - below)
        found = max(start, min(bisect_right(cumulated, target) - 1, len(_EDGES) - 1))
        inside = (target - cumulated[found]) / (self._weights[found] or 1.0)
        upper = _EDGES[found + 1] if found + 1 < len(_EDGES) else _EDGES[found]
        return _EDGES[found] + inside * (upper - _EDGES[found])


@final
class OutputLengths:
    """Per kind of request (its tenant and SLO class, say), and of all."""

    __slots__ = ("_all", "_kinds")

    def __init__(self) -> None:
        self._all = LengthHistogram()
        for num_tokens in PRIOR_TOKENS:
            self._all.add(num_tokens)
        self._kinds: dict[Hashable, LengthHistogram] = {}

    def add(self, kind: Hashable, num_tokens: int) -> None:
        """A request of this kind has ended by itself."""
        if num_tokens < 1:
            return
        self._all.add(num_tokens)
        if kind not in self._kinds and len(self._kinds) >= MAX_KINDS:
            del self._kinds[next(iter(self._kinds))]
        self._kinds.setdefault(kind, LengthHistogram()).add(num_tokens)

    def of(self, kind: Hashable) -> LengthHistogram:
        known = self._kinds.get(kind)
        return known if known is not None and known.num_samples >= MIN_SAMPLES else self._all


def _bin(num_tokens: int) -> int:
    return _BINS[num_tokens] if 0 <= num_tokens < _USUAL else max(0, bisect_right(_EDGES, num_tokens) - 1)


_BINS = [max(0, bisect_right(_EDGES, num_tokens) - 1) for num_tokens in range(_USUAL)]
"""Of usual lengths."""

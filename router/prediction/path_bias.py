"""How predictions differ from what clients see, by path: learned from closed requests. Pure.

Tokenizer, HTTP, hops between processes and whatever else the engine models leave out add time that does not grow with
the work, and what they get wrong grows with it. So both are learned, `actual = overhead + factor * predicted`: alone, a
factor makes long requests of a small model wrong, and an overhead long requests of a large one.
"""

from typing import Final, final

import msgspec

from cluster.messages.ids import Path
from cluster.messages.placement import Prediction
from router.prediction.decaying import ERROR_SHARE, moving_mean
from router.prediction.recursive_least_squares import RecursiveLeastSquares

FACTOR = (0.5, 2.0)
"""Bounds: what is further off is not a bias."""
MOST_OVERHEAD: Final = 5.0
"""In units. A path that was unlucky for a while must not seem closed for ever: who is not used is not corrected."""
LEAST_TOKENS: Final = 16
_NOISE: Final = 0.25
"""Queues and other requests are hard to foresee."""
_DOUBT: Final = 0.3
_TTFT_OVERHEAD_S, _TPOT_OVERHEAD_S = 50e-3, 1e-3
"""Units of the overheads."""
_LONGEST_S: Final = 3600.0


class PathErrors(msgspec.Struct, frozen=True):
    """Moving averages of the relative error of what clients were predicted to see. None: nothing seen yet."""

    ttft: float | None = None
    tpot: float | None = None


@final
class Bias:
    """Of one figure on one path."""

    __slots__ = ("_estimate", "_unit_s", "error", "factor", "overhead_s")

    error: float | None
    """Moving average of the relative error of corrected predictions."""

    def __init__(self, unit_s: float) -> None:
        self._unit_s = unit_s
        self._estimate = RecursiveLeastSquares([0.0, 1.0], own_doubt=_DOUBT, common_doubt=0.0, noise=_NOISE)
        self.overhead_s, self.factor = 0.0, 1.0
        self.error = None

    def corrected(self, predicted_s: float) -> float:
        """The engine models' prediction, corrected."""
        return self.overhead_s + self.factor * predicted_s

    def observe(self, predicted_s: float, actual_s: float) -> None:
        """`predicted_s`: before correction. Learning from what was corrected would chase its own tail: dozens of
        requests are placed before the first of them is closed.
        """
        if not (0 < predicted_s < _LONGEST_S and 0 < actual_s < _LONGEST_S):
            return
        error = abs(self.corrected(predicted_s) - actual_s) / actual_s
        self.error = moving_mean(self.error, error, ERROR_SHARE)
        self._estimate.update([self._unit_s, predicted_s], actual_s, least=self._unit_s / 50)
        overhead, factor = self._estimate.coefficients
        self.overhead_s = min(overhead, MOST_OVERHEAD) * self._unit_s
        self.factor = min(max(factor, FACTOR[0]), FACTOR[1])


@final
class PathBias:
    """Of TTFT and TPOT on every path."""

    def __init__(self) -> None:
        self._ttft = {path: Bias(_TTFT_OVERHEAD_S) for path in Path}
        self._tpot = {path: Bias(_TPOT_OVERHEAD_S) for path in Path}

    def ttft(self, path: Path) -> Bias:
        return self._ttft[path]

    def tpot(self, path: Path) -> Bias:
        return self._tpot[path]

    def observe(
        self, predicted: Prediction, ttft_s: float | None, tpot_s: float | None, num_output_tokens: int
    ) -> None:
        """What became of a request. None: it had no such figure. The TPOT of a few tokens says more of the gap before
        the second one than of how the others come.
        """
        if ttft_s is not None:
            self._ttft[predicted.path].observe(predicted.engine_ttft_s, ttft_s)
        if tpot_s is not None and num_output_tokens >= LEAST_TOKENS:
            gap_s = predicted.engine_gap_s / (num_output_tokens - 1)
            self._tpot[predicted.path].observe(predicted.engine_tpot_s, tpot_s - gap_s)

    def errors(self) -> dict[Path, PathErrors]:
        return {path: PathErrors(self._ttft[path].error, self._tpot[path].error) for path in Path}

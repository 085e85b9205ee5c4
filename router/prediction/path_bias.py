"""How predictions differ from what clients see, by path: learned from closed requests. Pure.

The engine models leave out the tokenizer, HTTP and the hops between processes: time that does not grow with the work.
The errors of the engine models do grow with the work. So an overhead and a factor are learned, `actual = overhead +
factor * predicted`. A factor alone is wrong for long requests of a small model; an overhead alone is wrong for long
requests of a large model.
"""

from math import inf
from typing import Final, final

import msgspec

from cluster.messages.ids import Path
from cluster.messages.placement import Prediction
from router.prediction.decaying import ERROR_SHARE, moving_mean
from router.prediction.recursive_least_squares import RecursiveLeastSquares

FACTOR = (0.5, 2.0)
"""Bounds of the factor. Wider bounds correct for chance; narrower ones leave a bias of the engine models in place."""
MOST_OVERHEAD: Final = 5.0
"""Largest overhead, in units of _TTFT_OVERHEAD_S and _TPOT_OVERHEAD_S. Higher can close a path after some slow
requests: a path that is not used is not corrected. Lower predicts too short times where the overhead is large.
"""
LEAST_TOKENS: Final = 16
"""Output tokens from which the TPOT of a request counts. Higher learns from fewer requests; lower learns from requests
whose TPOT is mostly the gap before the second token.
"""
_NOISE: Final = 0.25
"""Usual error of one sample, as a share: queues and later requests are hard to predict. Higher learns more slowly;
lower follows chance.
"""
_DOUBT: Final = 0.3
"""Expected error of an overhead of 0 and a factor of 1, as a share. Higher follows the first requests faster, chance
included; lower keeps wrong predictions longer.
"""
_TTFT_OVERHEAD_S, _TPOT_OVERHEAD_S = 50e-3, 1e-3
"""Units of the overheads, in seconds: their usual size. Larger units change an overhead faster, smaller ones slower."""
_LONGEST_S: Final = 3600.0
"""Longest time that is learned from, in seconds. Higher learns from requests that were stopped for a while; lower
ignores long queues.
"""


FIRST_SOFTNESS: Final = 0.1
"""Softness, as a share of the objective, of the threshold at which a prediction counts as a miss, before anything is
learned. Higher blurs the choice between a good and a late option; lower trusts predictions that nothing has confirmed.
"""
LEAST_TTFT_SOFTNESS: Final = 0.1
"""Least softness for a TTFT, likewise. Lower trusts predictions that later prompts, which overtake, make too short."""
LEAST_TPOT_SOFTNESS: Final = 0.04
"""Least softness for a TPOT, likewise. Lower trusts predictions that were exact by chance."""
MOST_SOFTNESS: Final = 0.2
"""Greatest softness, likewise. Higher places by chance where predictions are poor; lower trusts poor predictions."""
MOST_ERROR: Final = 1.0
"""Largest error of one request that counts, as a share. Higher lets one outlier blur all decisions for a while; lower
takes poor predictions for good ones.
"""
SOFTNESS_OF_ERROR: Final = 0.72
"""Softness as a multiple of the mean error: 1 / (2 ln 2), for errors that have the logistic distribution."""
SLACK_SHARE: Final = 0.67
"""Softness for a running request, as a multiple of that for a new one: much of its time is already known. Higher fills
workers until all running requests miss their objectives by a little; lower trusts predictions that are not exact.
"""


class PathErrors(msgspec.Struct, frozen=True):
    """Moving means of the relative errors of corrected predictions. None before the first request."""

    ttft: float | None = None
    tpot: float | None = None


@final
class Bias:
    """The bias of the TTFT or of the TPOT on one path."""

    __slots__ = ("_estimate", "_unit_s", "error", "factor", "overhead_s")

    error: float | None
    """Moving mean of the relative errors of corrected predictions. None before the first request."""

    def __init__(self, unit_s: float) -> None:
        self._unit_s = unit_s
        self._estimate = RecursiveLeastSquares([0.0, 1.0], own_doubt=_DOUBT, common_doubt=0.0, noise=_NOISE)
        self.overhead_s, self.factor = 0.0, 1.0
        self.error = None

    def corrected(self, predicted_s: float, most_s: float = inf) -> float:
        """The prediction of the engine models, corrected. `most_s`: what the engines bound the time to."""
        return self.overhead_s + min(self.factor * predicted_s, most_s)

    def observe(self, predicted_s: float, actual_s: float) -> float | None:
        """Learn from a closed request. Returns the relative error of the corrected prediction, or None for times that
        nothing is learned from. `predicted_s`: the prediction before correction. Corrected predictions cannot be
        learned from: dozens of requests are placed with an old correction before the first of them is closed.
        """
        if not (0 < predicted_s < _LONGEST_S and 0 < actual_s < _LONGEST_S):
            return None
        error = abs(self.corrected(predicted_s) - actual_s) / actual_s
        self.error = moving_mean(self.error, error, ERROR_SHARE)
        self._estimate.update([self._unit_s, predicted_s], actual_s, least=self._unit_s / 50)
        overhead, factor = self._estimate.coefficients
        self.overhead_s = min(overhead, MOST_OVERHEAD) * self._unit_s
        self.factor = min(max(factor, FACTOR[0]), FACTOR[1])
        return error


@final
class PathBias:
    """The biases of TTFT and TPOT on all paths."""

    def __init__(self) -> None:
        self.ttft_softness = self.tpot_softness = FIRST_SOFTNESS
        """How soft the threshold is at which a prediction counts as a miss, as shares of the objective: as wide as the
        errors of predictions lately, on all paths together.
        """
        self._ttft_error: float | None = None
        self._tpot_error: float | None = None
        self._ttft = _by_path(_TTFT_OVERHEAD_S)
        self._tpot = _by_path(_TPOT_OVERHEAD_S)

    @property
    def slack_softness(self) -> float:
        """How soft the threshold is at which a running request becomes a victim, as a share of its budget."""
        return SLACK_SHARE * self.tpot_softness

    def ttft(self, path: Path) -> Bias:
        return self._ttft[path]

    def tpot(self, path: Path) -> Bias:
        return self._tpot[path]

    def observe(
        self, predicted: Prediction, ttft_s: float | None, tpot_s: float | None, num_output_tokens: int
    ) -> None:
        """Learn from a closed request. `ttft_s`: None without a token; `tpot_s`: None without a second token."""
        if ttft_s is not None:
            error = self._ttft[predicted.path].observe(predicted.engine_ttft_s, ttft_s - predicted.waits_s)
            if error is not None:
                self._ttft_error = moving_mean(self._ttft_error, min(error, MOST_ERROR), ERROR_SHARE)
                self.ttft_softness = _softness(self._ttft_error, LEAST_TTFT_SOFTNESS)
        if tpot_s is not None and num_output_tokens >= LEAST_TOKENS:
            gap_s = predicted.engine_gap_s / (num_output_tokens - 1)
            error = self._tpot[predicted.path].observe(predicted.engine_tpot_s, tpot_s - gap_s)
            if error is not None:
                self._tpot_error = moving_mean(self._tpot_error, min(error, MOST_ERROR), ERROR_SHARE)
                self.tpot_softness = _softness(self._tpot_error, LEAST_TPOT_SOFTNESS)

    def errors(self) -> dict[Path, PathErrors]:
        return {path: PathErrors(self._ttft[path].error, self._tpot[path].error) for path in Path}


def _by_path(unit_s: float) -> dict[Path, Bias]:
    """Whole requests take the same steps on workers of both pools, so paths D and P learn together."""
    whole = Bias(unit_s)
    return {Path.PREFILL_DECODE: Bias(unit_s), Path.DECODE: whole, Path.PREFILL: whole}


def _softness(error: float, least: float) -> float:
    return min(max(SOFTNESS_OF_ERROR * error, least), MOST_SOFTNESS)

"""Recursive least squares over a few features: how the latency models learn. Pure.

An estimate follows a stream of (features, measured) pairs, keeps no samples, and

- weighs errors relative to what is measured, so that short steps count as much as long ones;
- discounts a sample that is far off, in proportion to how far (Huber): the bound follows the errors that are usual, so
  that an outlier is hardly believed and a drift is, after a few samples;
- expects that all coefficients drift together (a device that clocks down slows everything): what is seen of one kind of
  work soon holds for the others;
- forgets else only in the direction that a sample informs about (Kulhavý's directional forgetting): after hours without
  a prompt an engine's prefill is still known, and the covariance neither winds up nor vanishes;
- keeps every coefficient >= 0, so that whatever was seen, more work is never predicted to take less time.

Features are scaled by the caller so that coefficients are of the order of 1. Measurements of no meaning (not finite,
not positive) are ignored.
"""

from collections.abc import Sequence
from math import isfinite
from typing import Final, final

from router.prediction.decaying import ERROR_SHARE, moving_mean

FORGETTING: Final = 0.98
"""Kept of what is known along the direction of a sample: fifty samples of the same kind are remembered."""
DRIFT: Final = 0.004
"""Standard deviation of the change that is common to all coefficients, as a share of them, from sample to sample."""
_OUTLIER: Final = 4.0
"""Errors of so many times the usual one are discounted."""
_INFORMATION = (1e-9, 1e9)
"""Outside of it rounding would corrupt the covariance."""


@final
class RecursiveLeastSquares:
    __slots__ = ("_covariance", "_drift", "_noise", "_usual_error", "coefficients")

    def __init__(
        self, coefficients: Sequence[float], *, own_doubt: float, common_doubt: float, noise: float = 0.08
    ) -> None:
        """Starts from these coefficients, whose errors are thought to have two parts: one of each coefficient's own,
        in units of 1, and one that is common to all, as a share of them. `noise`: the usual error of one sample, as a
        share of it.
        """
        self.coefficients = list(coefficients)
        own, common = (own_doubt / noise) ** 2, (common_doubt / noise) ** 2
        self._covariance = [
            [common * a * b + (own if i == j else 0.0) for j, b in enumerate(coefficients)]
            for i, a in enumerate(coefficients)
        ]
        self._drift = (DRIFT / noise) ** 2
        self._noise = noise
        self._usual_error = noise

    def predict(self, features: Sequence[float]) -> float:
        return sum([c * f for c, f in zip(self.coefficients, features, strict=True)])

    def update(self, features: Sequence[float], measured: float, *, least: float) -> None:
        """Learns from one sample. `least`: of smaller measurements, errors count as shares of it."""
        if not (isfinite(measured) and measured > 0):
            return
        predicted = self.predict(features)
        scale = max(least, min(max(predicted, measured / 2), 2 * measured))  # a prediction that is far off is no scale
        error = (measured - predicted) / scale
        scaled = [f / scale for f in features]
        gains = [sum([p * f for p, f in zip(row, scaled, strict=True)]) for row in self._covariance]
        weight = self._weight(abs(error))
        information = weight * sum([f * g for f, g in zip(scaled, gains, strict=True)])
        if not _INFORMATION[0] < information < _INFORMATION[1]:
            return
        step = weight * error / (1 + information)
        self.coefficients = [c + step * g for c, g in zip(self.coefficients, gains, strict=True)]
        self._keep_positive()
        self._forget(gains, weight, information)

    def _weight(self, error: float) -> float:
        bound = min(1.0, max(self._noise, _OUTLIER * self._usual_error))
        self._usual_error = moving_mean(self._usual_error, min(1.0, error), ERROR_SHARE)
        return 1.0 if error <= bound else bound / error

    def _keep_positive(self) -> None:
        """Moves to the likeliest coefficients that are not negative: one that would be is set to zero, and the others
        take over what it explained, as far as they are correlated with it.
        """
        for _ in self.coefficients:
            worst = min(range(len(self.coefficients)), key=self.coefficients.__getitem__)
            excess = self.coefficients[worst]
            if excess >= 0:
                return
            row = self._covariance[worst]
            self.coefficients = [c - p * excess / row[worst] for c, p in zip(self.coefficients, row, strict=True)]
            self.coefficients[worst] = 0.0
        self.coefficients = [max(0.0, c) for c in self.coefficients]

    def _forget(self, gains: list[float], weight: float, information: float) -> None:
        """What the sample has told is gained, what it has replaced is forgotten (Kulhavý and Zarrop 1993), and all
        coefficients may have drifted.
        """
        kept = FORGETTING - (1 - FORGETTING) / information
        shrink = weight / (1 / kept + information) if kept else 0.0  # 0: as much is forgotten as is learned
        drift, coefficients = self._drift, self.coefficients
        for row, gain, own in zip(self._covariance, gains, coefficients, strict=True):
            row[:] = [p - shrink * gain * g + drift * own * c for p, g, c in zip(row, gains, coefficients, strict=True)]

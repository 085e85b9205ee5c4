"""Recursive least squares over a few features: how the latency models learn. Pure.

An estimate follows a stream of pairs (features, measured) and keeps no samples.

- Errors are weighed relative to the measured value, so that short steps count as much as long steps.
- A sample that is far off counts less, in proportion to its distance (Huber). The bound follows the usual errors. So an
  outlier hardly changes the estimate, and a drift does after a few samples.
- All coefficients are expected to drift together: a device that lowers its clock slows all work. So an estimate learns
  from one kind of work about all kinds.
- Otherwise the estimate forgets only in the direction of a sample (Kulhavý's directional forgetting). After hours
  without a prompt the prefill of an engine is still known, and the covariance neither grows without bound nor vanishes.
- Every coefficient stays >= 0, so that more work is never predicted to take less time.

The caller scales the features so that coefficients are of the order of 1. Measurements without meaning (not finite, or
not positive) are ignored.
"""

from collections.abc import Sequence
from math import isfinite
from typing import Final, final

from router.prediction.decaying import ERROR_SHARE, moving_mean

FORGETTING: Final = 0.98
"""Share of the knowledge that is kept along the direction of a sample: about fifty samples are remembered. Higher
follows a change late; lower follows noise.
"""
DRIFT: Final = 0.004
"""Standard deviation of the change of all coefficients together from sample to sample, as a share. Higher follows
noise; lower follows a slower device late.
"""
_OUTLIER: Final = 4.0
"""Multiple of the usual error from which a sample counts less. Higher believes outliers; lower follows a change late.
"""
_INFORMATION = (1e-9, 1e9)
"""Bounds of the information of a sample. Beyond them rounding would corrupt the covariance; within narrower bounds good
samples would be ignored.
"""


@final
class RecursiveLeastSquares:
    __slots__ = ("_covariance", "_drift", "_noise", "_usual_error", "coefficients")

    def __init__(
        self, coefficients: Sequence[float], *, own_doubt: float, common_doubt: float, noise: float = 0.08
    ) -> None:
        """Start from `coefficients`. Their expected error has two parts: `own_doubt` is independent for each
        coefficient, in units of 1; `common_doubt` is common to all, as a share of them. `noise`: the usual error of a
        sample, as a share of the sample.
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
        """Learn from one sample. Errors of measurements below `least` count as shares of `least`."""
        if not (isfinite(measured) and measured > 0):
            return
        predicted = self.predict(features)
        scale = max(
            least, min(max(predicted, measured / 2), 2 * measured)
        )  # a prediction that is far off cannot be the scale
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
        """Move to the likeliest coefficients that are not negative. A negative coefficient is set to zero. Coefficients
        that are correlated with it take over what it explained.
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
        """Update the covariance: add the information of the sample, forget the information that the sample replaces
        (Kulhavý and Zarrop 1993), and allow for a drift of all coefficients.
        """
        kept = FORGETTING - (1 - FORGETTING) / information
        shrink = weight / (1 / kept + information) if kept else 0.0  # 0: the sample replaces as much as it adds
        drift, coefficients = self._drift, self.coefficients
        for row, gain, own in zip(self._covariance, gains, coefficients, strict=True):
            row[:] = [p - shrink * gain * g + drift * own * c for p, g, c in zip(row, gains, coefficients, strict=True)]

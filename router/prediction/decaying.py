"""Figures that forget: sums that forget with time, and means that forget with each sample. Pure.

A decaying sum counts `exp(-age / window)` of each amount. A steady stream of one per second keeps the sum at the length
of the window in seconds. A moving mean takes a fixed share of each new sample, however much time lies between samples.
"""

from math import exp
from typing import Final, final

ERROR_SHARE: Final = 0.05
"""Share of the newest error in a moving mean of the errors of predictions. Higher follows chance; lower shows a change
late.
"""


def remaining(age_s: float, window_s: float) -> float:
    """Share of an amount that still counts when the amount is `age_s` old."""
    return exp(-age_s / window_s)


def moving_mean(mean: float | None, sample: float, share: float) -> float:
    """The mean after one more sample, which counts as `share` of the new mean. `mean`: None before the first sample."""
    return sample if mean is None else mean + share * (sample - mean)


def moving_median(median: float | None, sample: float, share: float) -> float:
    """The median after one more sample, which moves it by `share` of itself. All samples are positive. `median`: None
    before the first sample.
    """
    if median is None or sample == median:
        return sample
    return median * (1.0 + share) if sample > median else median / (1.0 + share)


@final
class DecayingSum:
    """A sum of amounts, each of which counts less the older it is."""

    __slots__ = ("_at", "value", "window_s")

    value: float
    """The sum at the time of the latest call of `add` or `at`."""
    window_s: float
    """Age, in seconds, at which 1/e of an amount still counts."""

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self.value = self._at = 0.0

    def add(self, amount: float, now: float) -> None:
        self.value = self.at(now) + amount

    def at(self, now: float) -> float:
        """The sum now. A time before the latest one counts as the latest one."""
        age_s = now - self._at
        if age_s > 0.0:
            self._at = now
            if self.value:
                self.value *= remaining(age_s, self.window_s)
        return self.value

    def clear(self) -> None:
        """Forget all amounts."""
        self.value = 0.0

"""The highest rate at which a share of all requests still meets its objectives. Pure: a trial is a callable.

Attainment falls with the rate, steeply at capacity. So the search first brackets the target from a guess, then narrows
the bracket on the logarithm of the rate: by interpolation between the log odds of both ends, which are nearly straight
there, and by halves where an end was not measured or the last step shrank the bracket by less than that. A trial need
not finish when its misses already say that it is above (`None`).
"""

from collections.abc import Callable
from math import exp, log

import msgspec

RESOLUTION = 0.01
"""Of the rate that is found, relative."""
WIDEST = 2.0**8
"""The target is not looked for further from the first guess than this factor."""
FIRST_STEP, WIDER = 1.25, 1.4
"""From the guess to the next rate, and how much each step is wider than the one before."""
MARGIN = 0.1
"""Interpolated steps keep so much of the bracket from its ends."""
LEAST_ODDS = 1e-3
"""An attainment of 1 or 0 counts as so near to it."""

Trial = Callable[[float], float | None]
"""Attainment at a rate; None: below the target, by how much was not measured."""


class MaxRate(msgspec.Struct, frozen=True):
    rate: float
    """0: even the lowest rate tried misses the target."""
    attainment: float
    """At that rate."""
    tried: tuple[tuple[float, float | None], ...]
    """Rates and what they attained, in the order of the search."""


class _Search:
    """The highest rate known to attain the target, and the lowest known not to."""

    def __init__(self, trial: Trial, target: float) -> None:
        self._trial = trial
        self._target = target
        self.low, self.at_low = 0.0, 0.0
        self.high: float | None = None
        self._at_high: float | None = None
        self.tried: list[tuple[float, float | None]] = []

    def attains(self, rate: float) -> bool:
        attainment = self._trial(rate)
        self.tried.append((rate, attainment))
        if attainment is not None and attainment >= self._target:
            self.low, self.at_low = rate, attainment
            return True
        self.high, self._at_high = rate, attainment
        return False

    def interpolated(self) -> float:
        """Share of the bracket, in logarithms, where the target should be."""
        if self._at_high is None:
            return 0.5
        at_low, target, at_high = (_log_odds(a) for a in (self.at_low, self._target, self._at_high))
        return min(max((at_low - target) / max(at_low - at_high, 1e-9), MARGIN), 1 - MARGIN)


def max_rate(trial: Trial, target: float, guess: float, resolution: float = RESOLUTION) -> MaxRate:
    """The highest rate with attainment of at least `target`, starting from `guess`."""
    search = _Search(trial, target)
    rate, step = guess, FIRST_STEP
    is_rising = search.attains(rate)
    while not (search.low and search.high) and guess / WIDEST < rate < guess * WIDEST:
        rate = rate * step if is_rising else rate / step
        step *= WIDER
        search.attains(rate)
    share = search.interpolated()
    while search.low and search.high and search.high / search.low > 1 + resolution:
        width = log(search.high / search.low)
        search.attains(search.low * exp(share * width))
        has_halved = log(search.high / search.low) <= width / 2
        share = search.interpolated() if has_halved else 0.5
    return MaxRate(search.low, search.at_low, tuple(search.tried))


def _log_odds(attainment: float) -> float:
    clipped = min(max(attainment, LEAST_ODDS), 1 - LEAST_ODDS)
    return log(clipped / (1 - clipped))

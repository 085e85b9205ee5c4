"""Search the highest rate at which a given share of all requests meets its objectives. Pure.

Rates are powers of RATIO, so that searches from different guesses find the same rate and can share trials. Attainment
falls as the rate rises, steeply at capacity. A search has two phases:

1. The search brackets the target: it moves away from the guess in growing steps until two rates enclose the target.
2. The search narrows the bracket by interpolation between the log odds of both ends, because the log odds are nearly
   a straight line there. The search halves the bracket instead where one end has no measured attainment, or where the
   last step shrank the bracket by less than half.

A trial may stop early and return None once its misses rule the target out.
"""

from collections.abc import Callable, Sequence
from math import inf, log
from typing import Generic, TypeVar

import msgspec

RATIO = 1.01
"""Ratio of two neighbouring rates, which is the resolution of a search. Closer to 1 needs more trials; further from 1
gives coarser rates.
"""
REACH = 560
"""Distance from the first guess at which a search stops to look for a bracket, in steps of RATIO. 560 steps are a
factor of 263. Lower fails after a bad guess; higher spends trials on a target that no rate attains.
"""
FIRST_STEP, WIDER = 22, 1.5
"""Distance from the guess to the next rate tried, in steps of RATIO (22 steps are a factor of 1.24), and the factor by
which each further step is wider. Lower needs more trials after a bad guess; higher leaves a wider bracket to narrow.
"""
MARGIN = 0.1
"""Least distance of an interpolated rate from either end of the bracket, as a share of the bracket. Lower may shrink
the bracket very little; higher ignores what interpolation has found.
"""
LEAST_ODDS = 1e-3
"""Distance that interpolation keeps from an attainment of 0 or 1, whose log odds are infinite. Lower moves the
interpolated rate away from a saturated end; higher treats nearly saturated ends alike.
"""

Setting = TypeVar("Setting")
Trial = Callable[[float], float | None]
"""Returns the attainment at a rate, or None if the attainment is below the target and was not measured exactly."""


class MaxRate(msgspec.Struct, frozen=True):
    rate: float
    """Highest rate that attains the target, in requests per second. 0 if every rate tried misses the target."""
    attainment: float
    """Share of the requests that met their objectives at `rate`. 0 if `rate` is 0."""
    num_trials: int


class Best(msgspec.Struct, Generic[Setting], frozen=True):
    """The setting of a policy that carries the highest rate."""

    setting: Setting
    found: MaxRate


class Bracket:
    """The highest rate known to attain the target and the lowest known to miss it, as powers of a ratio."""

    def __init__(self, target: float, ratio: float = RATIO) -> None:
        self._target = target
        self._ratio = ratio
        self.low, self.high = -inf, inf
        self._at_low = 0.0
        self._at_high: float | None = None
        self._last_width: float | None = None
        """Width of the bracket when `inside` was last asked."""

    def learn(self, rate: float, attainment: float | None) -> bool:
        """Move one end of the bracket to a rate that was tried. Returns whether it attains the target."""
        number = _number(rate, self._ratio)
        if attainment is not None and attainment >= self._target:
            self.low, self._at_low = number, attainment
            return True
        self.high, self._at_high = number, attainment
        return False

    def inside(self) -> float | None:
        """The rate to try next. None if no power of the ratio is left inside the bracket, or one end is missing."""
        width = self.high - self.low
        if not 1 < width < inf:
            return None
        has_halved = self._last_width is None or width <= self._last_width / 2 + 1
        self._last_width = width
        share = self._interpolated if has_halved else 0.5
        return _rate(int(self.low + min(max(round(share * width), 1), width - 1)), self._ratio)

    @property
    def found(self) -> tuple[float, float]:
        """The highest rate that attains the target, and its attainment. Both are 0 if there is none."""
        return (_rate(self.low, self._ratio), self._at_low) if self.low > -inf else (0.0, 0.0)

    @property
    def _interpolated(self) -> float:
        """Where interpolation expects the target, as a share of the bracket from its low end."""
        if self._at_high is None:
            return 0.5
        at_low, target, at_high = (_log_odds(a) for a in (self._at_low, self._target, self._at_high))
        return min(max((at_low - target) / max(at_low - at_high, 1e-9), MARGIN), 1 - MARGIN)


def max_rate(trial: Trial, target: float, guess: float) -> MaxRate:
    """Find the highest rate whose attainment is at least `target`, starting from `guess`. Raises ValueError if every
    rate attains it, because then the requests are too few to load the workers.
    """
    bracket = Bracket(target)
    start = _number(guess)
    number, step = start, float(FIRST_STEP)
    is_rising = bracket.learn(_rate(number), trial(_rate(number)))
    num_trials = 1
    while bracket.high - bracket.low == inf and abs(number - start) < REACH:
        number += round(step) if is_rising else -round(step)
        step *= WIDER
        bracket.learn(_rate(number), trial(_rate(number)))
        num_trials += 1
    if bracket.high == inf:
        raise ValueError(f"even {_rate(number):.3g} requests per second attain the target: there are too few requests")
    while (rate := bracket.inside()) is not None:
        bracket.learn(rate, trial(rate))
        num_trials += 1
    return MaxRate(*bracket.found, num_trials)


def best_of(
    trial_of: Callable[[Setting], Trial], settings: Sequence[Setting], target: float, guess: float
) -> Best[Setting]:
    """Find the setting with the highest rate. The first setting is searched first.

    Each further setting is searched only if it attains the target one rate above the best rate so far. So most settings
    cost one trial, if the first one is a good one.
    """
    best = Best(settings[0], max_rate(trial_of(settings[0]), target, guess))
    for setting in settings[1:]:
        trial, better = trial_of(setting), _number(best.found.rate or guess) + 1
        attainment = trial(_rate(better)) if best.found.rate else target
        if attainment is not None and attainment >= target:
            found = max_rate(trial, target, _rate(better + FIRST_STEP))
            best = Best(setting, found) if found.rate > best.found.rate else best
    return best


def _number(rate: float, ratio: float = RATIO) -> int:
    return round(log(rate) / log(ratio))


def _rate(number: float, ratio: float = RATIO) -> float:
    return float(f"{ratio**number:.6g}")


def _log_odds(attainment: float) -> float:
    clipped = min(max(attainment, LEAST_ODDS), 1 - LEAST_ODDS)
    return log(clipped / (1 - clipped))

"""The highest rate at which a share of all requests still meets its objectives. Pure: a trial is a callable.

Rates are powers of RATIO, so that one search finds what another one with another guess would find, and their trials can
be shared. Attainment falls with the rate, steeply at capacity. So a search first brackets the target from a guess, then
narrows the bracket: by interpolation between the log odds of both ends, which are nearly straight there, and by halves
where an end was not measured or the last step shrank the bracket by less than that. A trial need not finish when its
misses already say that it is above (`None`).
"""

from collections.abc import Callable, Sequence
from math import inf, log

import msgspec

RATIO = 1.01
"""Of two neighbouring rates: what a search resolves."""
REACH = 560
"""The target is not looked for further from the first guess than so many rates: a factor of 263."""
FIRST_STEP, WIDER = 22, 1.5
"""From the guess to the next rate tried (a factor of 1.24), and how much each such step is wider than the last one."""
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
    num_trials: int


class BestSplit(msgspec.Struct, frozen=True):
    """Of a number of workers into prefill and decode workers."""

    num_prefill: int
    found: MaxRate


class _Search:
    """The highest rate known to attain the target, and the lowest known not to, by their numbers."""

    def __init__(self, trial: Trial, target: float) -> None:
        self._trial = trial
        self._target = target
        self.low, self.high = -inf, inf
        self.at_low = 0.0
        self._at_high: float | None = None
        self.num_trials = 0

    def attains(self, number: int) -> bool:
        attainment = self._trial(_rate(number))
        self.num_trials += 1
        if attainment is not None and attainment >= self._target:
            self.low, self.at_low = number, attainment
            return True
        self.high, self._at_high = number, attainment
        return False

    @property
    def interpolated(self) -> float:
        """Share of the bracket where the target should be."""
        if self._at_high is None:
            return 0.5
        at_low, target, at_high = (_log_odds(a) for a in (self.at_low, self._target, self._at_high))
        return min(max((at_low - target) / max(at_low - at_high, 1e-9), MARGIN), 1 - MARGIN)

    @property
    def found(self) -> MaxRate:
        return MaxRate(_rate(self.low) if self.low > -inf else 0.0, self.at_low, self.num_trials)


def max_rate(trial: Trial, target: float, guess: float) -> MaxRate:
    """The highest rate with attainment of at least `target`, starting from `guess`."""
    search = _Search(trial, target)
    start = _number(guess)
    number, step = start, float(FIRST_STEP)
    is_rising = search.attains(number)
    while search.high - search.low == inf and abs(number - start) < REACH:
        number += round(step) if is_rising else -round(step)
        step *= WIDER
        search.attains(number)
    share = search.interpolated
    while 1 < search.high - search.low < inf:
        width = search.high - search.low
        search.attains(int(search.low + min(max(round(share * width), 1), width - 1)))
        has_halved = search.high - search.low <= width / 2 + 1
        share = search.interpolated if has_halved else 0.5
    return search.found


def best_split(trial_of: Callable[[int], Trial], splits: Sequence[int], target: float, guess: float) -> BestSplit:
    """The split with the highest rate, looking first at the one in the middle, then at the others from there outwards.

    Another split is searched only if it attains the target at the next higher rate: most cost one hopeless trial.
    """
    order = sorted(splits, key=lambda split: abs(split - splits[len(splits) // 2]))
    best = BestSplit(order[0], max_rate(trial_of(order[0]), target, guess))
    for split in order[1:]:
        trial, better = trial_of(split), _number(best.found.rate or guess) + 1
        attainment = trial(_rate(better)) if best.found.rate else target
        if attainment is not None and attainment >= target:
            found = max_rate(trial, target, _rate(better + FIRST_STEP))
            best = BestSplit(split, found) if found.rate > best.found.rate else best
    return best


def _number(rate: float) -> int:
    return round(log(rate) / log(RATIO))


def _rate(number: float) -> float:
    return float(f"{RATIO**number:.6g}")


def _log_odds(attainment: float) -> float:
    clipped = min(max(attainment, LEAST_ODDS), 1 - LEAST_ODDS)
    return log(clipped / (1 - clipped))

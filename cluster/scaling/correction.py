"""Correction: the factor by which the model of a worker's rate is wrong, learned from attainment. Pure.

The pools have some number of workers for each one that the model asks for: their ratio. If fewer requests than the
target met their objectives at a ratio, the factor is above it. If nearly all did, the factor is below it, so a ratio
that was far above the factor, because the load is below the floor of the pools, says nothing. Neither do misses while
workers are still starting.
"""

from math import inf, sqrt
from typing import Final

WINDOW_S: Final = 30.0
"""Least time over which attainment is measured, in seconds. Longer corrects later; shorter follows chance."""
LEAST_ENDED: Final = 40
"""Fewest ended requests over which attainment is measured. More corrects later where requests are rare; fewer follows
chance.
"""
RISE: Final = 2.0
"""Growth of the factor per missing part of attainment: 2 is 10 % for 5 points. Higher orders more workers than are
needed; lower misses for longer.
"""
MOST_RISE: Final = 0.2
"""Most growth of the factor at a time. Higher overshoots after a burst of misses; lower misses for longer."""
MOST_FALL: Final = 0.06
"""Fall of the factor each time that no request at all has missed. It is less where some have, and none half-way to the
target. Higher finds the edge by missing it; lower keeps workers for longer than they are needed.
"""
CLOSE: Final = 1.25
"""Ratio up to which attainment says something of the factor, as a multiple of the factor. Higher takes good times of
pools that are too large for a model that is too careful; lower never learns that it is, since numbers of workers are
rounded up.
"""
BOUNDS: Final = (0.4, 4.0)
"""Smallest and largest factor. Wider follows misses that workers cannot cure, such as objectives that are too short;
narrower keeps a model that is wrong.
"""
KNOWN_S: Final = 3600.0
"""Age up to which the factor that an earlier process has learned is the one to begin with, in seconds. Longer begins
with what other engines or objectives needed; shorter forgets what was learned in an update that takes long.
"""


def first_factor(learned: float, age_s: float) -> float:
    """The factor to begin with, where an earlier process has left `learned`, `age_s` ago. 1 if that is too old, or no
    factor that a Correction can have: it comes from a store that others may write.
    """
    return learned if BOUNDS[0] <= learned <= BOUNDS[1] and abs(age_s) <= KNOWN_S else 1.0


class Correction:
    def __init__(self, target: float, factor: float = 1.0) -> None:
        self._target = target
        self.factor = factor
        self._good = self._missed = 0
        self._since = float("-inf")
        self._is_settled = True
        self._ratios = 0.0
        """Sum of the ratios that were seen, and their number."""
        self._num_ratios = 0

    def begin_anew(self, num_good: int, num_missed: int, now: float) -> None:
        """Measure from now on."""
        self._good, self._missed, self._since, self._is_settled = num_good, num_missed, now, True
        self._ratios, self._num_ratios = 0.0, 0

    def observe(self, num_good: int, num_missed: int, now: float, *, ratio: float | None, is_settled: bool) -> None:
        """`ratio`: live workers for each one that the model asks for now. None if it asks for none. `is_settled`:
        whether all workers that were ordered are ready.
        """
        self._is_settled &= is_settled
        if ratio is not None:
            self._ratios += ratio
            self._num_ratios += 1
        good, missed = num_good - self._good, num_missed - self._missed
        ended = good + missed
        if now - self._since < WINDOW_S or ended < LEAST_ENDED:
            return
        usual = self._ratios / self._num_ratios if self._num_ratios else inf
        doubt = sqrt(self._target * (1 - self._target) / ended)
        lacks = self._target - good / ended
        if lacks > doubt:
            if self._is_settled:
                self.factor = max(self.factor, min(usual, self.factor * CLOSE) * (1 + min(MOST_RISE, RISE * lacks)))
        elif usual < CLOSE * self.factor:
            room = -lacks / (1 - self._target)  # 1 if no request has missed
            self.factor *= 1 - MOST_FALL * max(0.0, 2 * room - 1)
        self.factor = min(max(self.factor, BOUNDS[0]), BOUNDS[1])
        self.begin_anew(num_good, num_missed, now)

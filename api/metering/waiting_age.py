"""WaitingAge: how long the oldest of many things has waited that are taken in the order in which they came. Pure.

It keeps the time of some of them only, so that a long outage takes no memory: of one in a second, or in a hundredth of
the age of the oldest, whichever is longer. So an age is too high by that much at most.
"""

from collections import deque

LEAST_GAP_S = 1.0
"""Least time between two whose times are kept, in seconds. Longer makes ages less exact; shorter takes memory."""
GAP_SHARE = 0.01
"""The same as a share of the age of the oldest. Higher makes the ages of a long outage less exact; lower takes memory:
some 1,000 times are kept in a week of outage.
"""


class WaitingAge:
    def __init__(self) -> None:
        self._num_come = 0
        self._num_gone = 0
        self._kept: deque[tuple[int, float]] = deque()
        """Number of a thing among all that have come, and its time. The first one has come before or with the oldest
        that waits.
        """

    def come(self, now: float) -> None:
        if not self._kept or now - self._kept[-1][1] >= max(LEAST_GAP_S, GAP_SHARE * (now - self._kept[0][1])):
            self._kept.append((self._num_come, now))
        self._num_come += 1

    def gone(self, number: int) -> None:
        """The oldest ones wait no more."""
        self._num_gone += number
        while self._kept and (self._num_gone >= self._num_come or self._is_past(1)):
            self._kept.popleft()

    def age_s(self, now: float) -> float:
        """0 if nothing waits."""
        return now - self._kept[0][1] if self._kept else 0.0

    @property
    def num_kept(self) -> int:
        return len(self._kept)

    def _is_past(self, index: int) -> bool:
        """Whether all that came before the kept one at this index are gone."""
        return len(self._kept) > index and self._kept[index][0] <= self._num_gone

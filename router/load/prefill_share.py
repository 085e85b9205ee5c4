"""The share of its time that a worker spends on prompts, and that requests which decode there lose.

The stalls of the last second matter to a request that decodes for half a second. Those of the last ten seconds matter
to a request that decodes for ten. So the share is averaged over three windows, and each request takes the window that
is about as long as it will decode.
"""

from math import exp
from typing import Final, final

SHORT_S: Final = 1.0
MIDDLE_S: Final = 3.0
LONG_S: Final = 10.0
WINDOWS_S = (SHORT_S, MIDDLE_S, LONG_S)
MOST: Final = 0.9
_NO_TIME_S: Final = 1e-6

Shares = tuple[float, float, float]
"""Averaged over each of WINDOWS_S, in [0, MOST]."""


@final
class PrefillShare:
    __slots__ = ("_at", "_is_known", "_is_none", "_shares", "_stalled_s")

    def __init__(self) -> None:
        self._stalled_s: Shares = (0.0, 0.0, 0.0)
        """Of the last seconds, each counting less the older it is."""
        self._is_none = True
        """Nothing that counts."""
        self._at = 0.0
        self._shares: Shares = (0.0, 0.0, 0.0)
        """Then."""
        self._is_known = True
        """They have been looked at since."""

    def note(self, stall_s: float, now: float) -> None:
        """Decoding is to be stalled for so long."""
        self._age(now)
        short, middle, long = self._stalled_s
        self._stalled_s = (short + stall_s, middle + stall_s, long + stall_s)
        self._is_none = self._is_known = False

    def shares(self, now: float) -> Shares:
        if self._is_none:
            return 0.0, 0.0, 0.0
        self._age(now)
        if not self._is_known:
            short, middle, long = self._stalled_s
            self._shares = (
                min(MOST, short / SHORT_S),
                min(MOST, middle / MIDDLE_S),
                min(MOST, long / LONG_S),
            )
            self._is_known = True
        return self._shares

    def _age(self, now: float) -> None:
        age_s = now - self._at
        if age_s > 0.0:
            self._at = now
            self._is_known = False
            short, middle, long = self._stalled_s
            if long > _NO_TIME_S:
                self._stalled_s = (
                    short * exp(-age_s / SHORT_S),
                    middle * exp(-age_s / MIDDLE_S),
                    long * exp(-age_s / LONG_S),
                )
            else:
                self._stalled_s = (0.0, 0.0, 0.0)
                self._is_none = True


def share_over(shares: Shares, horizon_s: float) -> float:
    """The share over the window for a prediction that looks `horizon_s` ahead."""
    if horizon_s <= SHORT_S:
        return shares[0]
    return shares[1] if horizon_s <= MIDDLE_S else shares[2]


def lately(shares: Shares) -> float:
    """The share over the last MIDDLE_S, for predictions without a horizon."""
    return shares[1]

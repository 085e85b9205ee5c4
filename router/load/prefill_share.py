"""What share of its time a worker spends on prompts: what decoding there has to expect.

A request that decodes for half a second cares for the stalls of the last second, one that decodes for ten for those of
the last ten: the share is averaged over about as long as the asker looks ahead.
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
    """The one of `PrefillShare.shares` that counts for who looks so far ahead."""
    if horizon_s <= SHORT_S:
        return shares[0]
    return shares[1] if horizon_s <= MIDDLE_S else shares[2]


def lately(shares: Shares) -> float:
    """Over the last MIDDLE_S: how busy a worker is with prompts, for who has no horizon of his own."""
    return shares[1]

"""What share of its time a decode worker spends on prompts: what decoding there has to expect.

A request that decodes for half a second cares for the stalls of the last second, one that decodes for ten for those of
the last ten: the share is averaged over about as long as the asker looks ahead.
"""

from math import exp

WINDOWS_S = (1.0, 3.0, 10.0)
MOST = 0.9


class Duty:
    __slots__ = ("_at", "_stalled_s")

    def __init__(self) -> None:
        self._stalled_s = [0.0] * len(WINDOWS_S)
        """Of the last seconds, each counting less the older it is."""
        self._at = 0.0

    def note(self, stall_s: float, now: float) -> None:
        """Decoding is to be stalled for so long."""
        self._age(now)
        self._stalled_s = [stalled + stall_s for stalled in self._stalled_s]

    def shares(self, now: float) -> list[float]:
        """Averaged over each of WINDOWS_S, in [0, MOST]."""
        self._age(now)
        return [min(MOST, stalled / window) for stalled, window in zip(self._stalled_s, WINDOWS_S, strict=True)]

    def _age(self, now: float) -> None:
        age_s = now - self._at
        if age_s > 0.0:
            self._stalled_s = [
                stalled * exp(-age_s / window) for stalled, window in zip(self._stalled_s, WINDOWS_S, strict=True)
            ]
            self._at = now


def share_over(shares: list[float], horizon_s: float) -> float:
    """The one of `Duty.shares` that counts for who looks so far ahead."""
    for share, window in zip(shares, WINDOWS_S, strict=True):
        if horizon_s <= window:
            return share
    return shares[-1]

"""What share of its time a decode worker spends on prompts: what decoding there has to expect.

A request that decodes for half a second cares for the stalls of the last second, one that decodes for ten for those of
the last ten: the share is averaged over about as long as the asker looks ahead.
"""

from math import exp

WINDOWS_S = (1.0, 3.0, 10.0)
MOST = 0.9
_NO_TIME_S = 1e-6
_NONE = (0.0,) * len(WINDOWS_S)

Shares = tuple[float, ...]
"""Averaged over each of WINDOWS_S, in [0, MOST]."""


class Duty:
    __slots__ = ("_at", "_shares", "_stalled_s")

    def __init__(self) -> None:
        self._stalled_s = _NONE
        """Of the last seconds, each counting less the older it is."""
        self._at = 0.0
        self._shares: Shares | None = _NONE
        """Then. None: not looked at since."""

    def note(self, stall_s: float, now: float) -> None:
        """Decoding is to be stalled for so long."""
        self._age(now)
        self._stalled_s = tuple([stalled + stall_s for stalled in self._stalled_s])
        self._shares = None

    def shares(self, now: float) -> Shares:
        if self._stalled_s is _NONE:
            return _NONE
        self._age(now)
        if self._shares is None:
            of_windows = zip(self._stalled_s, WINDOWS_S, strict=True)
            self._shares = tuple([min(MOST, stalled / window_s) for stalled, window_s in of_windows])
        return self._shares

    def _age(self, now: float) -> None:
        age_s = now - self._at
        if age_s > 0.0:
            self._at = now
            self._shares = None
            if self._stalled_s[-1] > _NO_TIME_S:
                short, middle, long = self._stalled_s
                self._stalled_s = (
                    short * exp(-age_s / WINDOWS_S[0]),
                    middle * exp(-age_s / WINDOWS_S[1]),
                    long * exp(-age_s / WINDOWS_S[2]),
                )
            else:
                self._stalled_s = _NONE


def share_over(shares: Shares, horizon_s: float) -> float:
    """The one of `Duty.shares` that counts for who looks so far ahead."""
    if horizon_s <= WINDOWS_S[0]:
        return shares[0]
    return shares[1] if horizon_s <= WINDOWS_S[1] else shares[2]

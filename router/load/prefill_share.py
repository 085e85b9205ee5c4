"""Share of a worker's time that is spent on prompts: how long decoding there will be stalled.

A request that decodes for half a second is delayed by stalls like those of the last second, and a request that decodes
for ten seconds by stalls like those of the last ten. So the share is averaged over about the horizon of the question.
"""

from typing import Final, final

from router.prediction.decaying import DecayingSum

SHORT_S: Final = 1.0
MIDDLE_S: Final = 3.0
LONG_S: Final = 10.0
WINDOWS_S = (SHORT_S, MIDDLE_S, LONG_S)
"""Windows over which stalls are averaged, in seconds, for questions with a horizon up to SHORT_S, up to MIDDLE_S, and
beyond. Longer windows see a burst of prompts late; shorter ones take a single prompt for a busy worker.
"""
MOST: Final = 0.9
"""Largest share that is expected. Higher has predictions of decode time grow without bound on a busy worker; lower
takes a busy worker for one with time left.
"""
_NO_STALL_S: Final = 1e-6
"""Sum of stalls, in seconds, up to which a worker counts as free of prompts. Higher forgets short stalls; lower spends
CPU on ageing sums of workers that compute no prompts.
"""

Shares = tuple[float, float, float]
"""Averages over each of WINDOWS_S, in [0, MOST]."""


@final
class PrefillShare:
    __slots__ = ("_aged_at", "_is_free", "_is_known", "_long", "_middle", "_shares", "_short")

    def __init__(self) -> None:
        self._short, self._middle, self._long = DecayingSum(SHORT_S), DecayingSum(MIDDLE_S), DecayingSum(LONG_S)
        """Seconds of stalls."""
        self._is_free = True
        """The worker has no stall that counts."""
        self._aged_at = 0.0
        self._shares: Shares = (0.0, 0.0, 0.0)
        """The shares at `_aged_at`, if `_is_known`."""
        self._is_known = True

    def note(self, stall_s: float, now: float) -> None:
        """A prompt will stall decoding for `stall_s`."""
        self._age(now)
        self._short.add(stall_s, now)
        self._middle.add(stall_s, now)
        self._long.add(stall_s, now)
        self._is_free = self._is_known = False

    def shares(self, now: float) -> Shares:
        if self._is_free:
            return 0.0, 0.0, 0.0
        self._age(now)
        if not self._is_known:
            self._shares = (
                min(MOST, self._short.at(now) / SHORT_S),
                min(MOST, self._middle.at(now) / MIDDLE_S),
                min(MOST, self._long.at(now) / LONG_S),
            )
            self._is_known = True
        return self._shares

    def _age(self, now: float) -> None:
        if now <= self._aged_at:
            return
        self._aged_at = now
        self._is_known = False
        if self._long.value <= _NO_STALL_S:
            self._short.clear()
            self._middle.clear()
            self._long.clear()
            self._is_free = True


def share_over(shares: Shares, horizon_s: float) -> float:
    """The share of `PrefillShare.shares` to expect over the next `horizon_s`."""
    if horizon_s <= SHORT_S:
        return shares[0]
    return shares[1] if horizon_s <= MIDDLE_S else shares[2]


def lately(shares: Shares) -> float:
    """The share over the last MIDDLE_S: how busy a worker is with prompts, where a question has no horizon."""
    return shares[1]

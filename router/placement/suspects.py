"""Pairs of a prefill and a decode worker whose handoff was wrong, and that hand over nothing for a while."""

from typing import Final, final

from router.placement.candidates import Pair

PAIR_QUARANTINE_S: Final = 600.0
"""How long, in seconds. The cause is a defect, of software or of hardware. Longer costs the pair's handoffs after it
has been repaired, shorter has more requests find it out again.
"""


@final
class SuspectedPairs:
    def __init__(self) -> None:
        self._until: dict[Pair, float] = {}

    def add(self, pair: Pair, now: float) -> None:
        self._until = {one: until for one, until in self._until.items() if now < until}
        self._until[pair] = now + PAIR_QUARANTINE_S

    def held(self, now: float) -> frozenset[Pair]:
        """Those that hand over nothing now."""
        return frozenset(pair for pair, until in self._until.items() if now < until)

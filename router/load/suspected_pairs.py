"""Pairs of a prefill and a decode worker whose handoff was wrong. Such a pair hands nothing over for a while."""

from typing import Final, final

from cluster.messages.ids import WorkerId

PAIR_QUARANTINE_S: Final = 600.0
"""How long a suspected pair hands nothing over, in seconds. The cause is a defect, of software or of hardware. Higher
keeps a repaired pair unused for longer; lower lets more requests run into the same defect.
"""

Pair = tuple[WorkerId, WorkerId]
"""A prefill and a decode worker."""


@final
class SuspectedPairs:
    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until: dict[Pair, float] = {}

    def add(self, pair: Pair, now: float) -> None:
        self._until = {one: until for one, until in self._until.items() if now < until}
        self._until[pair] = now + PAIR_QUARANTINE_S

    def held(self, now: float) -> frozenset[Pair]:
        """The pairs that hand nothing over now."""
        return frozenset(pair for pair, until in self._until.items() if now < until)

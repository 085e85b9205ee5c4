"""Pairs of a prefill and a decode worker whose handoffs were wrong.

1. The first wrong handoff makes a pair a suspect. From then on every handoff of the pair is verified, and requests
   whose handoff cannot be verified do not use the pair.
2. NUM_CLEARING good handoffs in a row clear the suspect.
3. A second wrong handoff, on a placement that knew of the first one, convicts the pair. It hands nothing over for
   PAIR_QUARANTINE_S, and is a suspect again after that.

Strikes count one after another, as lost engines do (router/quarantine/quarantine.py): each placement carries the number
of strikes that were known before it, and a strike on that placement is the next one. So handoffs that were under way
together count once.
"""

from typing import Final, final

from cluster.messages.ids import WorkerId
from cluster.messages.operations import DistrustedPair
from cluster.messages.scheduler_events import HandoffChecked
from kvtransfer.verify import MAX_STRIKES

PAIR_QUARANTINE_S: Final = 600.0
"""How long a convicted pair hands nothing over, in seconds. The cause is a defect, of software or of hardware. Higher
keeps a repaired pair unused for longer; lower lets more requests run into the same defect.
"""
NUM_CLEARING: Final = 20
"""Good handoffs in a row that clear a suspected pair. Higher verifies more handoffs, which delays their second tokens;
lower clears a pair that fails now and then.
"""
MAX_SUSPECTS: Final = 10_000
"""Most suspected pairs. Beyond it the oldest suspicion is dropped: so many suspects at once mean that something else is
wrong. Higher takes more memory, some 200 bytes each.
"""

Pair = tuple[WorkerId, WorkerId]
"""A prefill and a decode worker."""


@final
class _Suspicion:
    __slots__ = ("num_good", "num_strikes")

    def __init__(self) -> None:
        self.num_strikes = 0
        self.num_good = 0
        """Good handoffs since the last strike."""


@final
class SuspectedPairs:
    __slots__ = ("_suspects", "_until")

    def __init__(self) -> None:
        self._until: dict[Pair, float] = {}
        """When the quarantine of each convicted pair ends."""
        self._suspects: dict[Pair, _Suspicion] = {}
        """The suspected pairs, the one that was suspected first comes first."""

    def checked(self, event: HandoffChecked, now: float) -> None:
        """A handoff of a pair was verified."""
        pair = event.prefill, event.decode
        if event.verdict.is_strike:
            self._strike(pair, event.num_strikes, now - event.age_s)
        elif (suspicion := self._suspects.get(pair)) is not None:
            suspicion.num_good += 1
            if suspicion.num_good >= NUM_CLEARING:
                del self._suspects[pair]

    def num_strikes(self, pair: Pair) -> int:
        """Strikes of a pair that hands over. After one every handoff of the pair is verified."""
        suspicion = self._suspects.get(pair)
        return suspicion.num_strikes if suspicion is not None else 0

    def barred(self, can_verify: bool, now: float) -> frozenset[Pair]:
        """The pairs that hand nothing over now, for a request whose handoff can or cannot be verified."""
        if not self._until and not self._suspects:
            return frozenset()
        held = [pair for pair, until in self._until.items() if now < until]
        return frozenset(held if can_verify else [*held, *self._suspects])

    def distrusted(self, now: float) -> list[DistrustedPair]:
        """The pairs that are suspected or convicted now."""
        convicted = [pair for pair, until in self._until.items() if now < until]
        return [
            DistrustedPair(
                prefill=pair[0],
                decode=pair[1],
                num_strikes=self.num_strikes(pair),
                barred_s=max(0.0, self._until.get(pair, now) - now),
            )
            for pair in dict.fromkeys([*convicted, *self._suspects])
        ]

    def forget(self, worker: WorkerId) -> None:
        """The worker is gone. Its id never comes back."""
        self._until = {pair: until for pair, until in self._until.items() if worker not in pair}
        self._suspects = {pair: suspicion for pair, suspicion in self._suspects.items() if worker not in pair}

    def validate(self) -> None:
        """Assert every invariant. Tests call it after each event."""
        assert len(self._suspects) <= MAX_SUSPECTS
        for suspicion in self._suspects.values():
            assert 0 < suspicion.num_strikes < MAX_STRIKES
            assert 0 <= suspicion.num_good < NUM_CLEARING

    def _strike(self, pair: Pair, num_strikes: int, at: float) -> None:
        suspicion = self._suspects.setdefault(pair, _Suspicion())
        suspicion.num_good = 0
        suspicion.num_strikes = min(MAX_STRIKES - 1, max(1, suspicion.num_strikes, num_strikes))
        if num_strikes >= MAX_STRIKES:
            self._until = {one: until for one, until in self._until.items() if at < until}
            self._until[pair] = max(self._until.get(pair, 0.0), at + PAIR_QUARANTINE_S)
        while len(self._suspects) > MAX_SUSPECTS:
            del self._suspects[next(iter(self._suspects))]

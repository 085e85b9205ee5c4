"""What the grammar of a request may cost its engine, and how the request ends if it costs more. Pure.

All requests of an engine wait for each other's grammars, which the engine's only thread follows between the steps. So
each request has an allowance of CPU time. It begins with a burst. With each token it grows by an equal share of what
grammars may add to a step, up to the burst again. A request that has overdrawn its allowance is ended. Requests with
the same constraint also have an allowance of some bursts together, because in one step each could spend its own.

A step has some bursts, too, for all grammars that are followed in it. Once these are spent, a grammar that is not known
to be cheap is ended before its next mask, and at LONGEST_STEP_BURSTS (3 s by default) every other grammar is: an engine
that does not answer for `stall_timeout_s` counts as hanging (cluster/config/pools.py).
"""

from enum import StrEnum

import msgspec

from cluster.config.structured_output import LONGEST_STEP_BURSTS, GrammarBudgetConfig

MIN_SHARERS = 8
"""Lowest number of requests by which a step's budget is divided. Fewer lets one request take more of a step; more ends
single requests with costly grammars.
"""
BURSTS_PER_STEP = LONGEST_STEP_BURSTS // 2
"""Bursts that may be spent in one step before grammars that are not known to be cheap are ended. More lets many
different costly constraints that begin together delay a step for longer; fewer ends harmless constraints, whose first
masks are costly too, when many begin at once. Must exceed BURSTS_TOGETHER, so that one constraint leaves time for other
ones. The half of the step that is left is for grammars that are known to be cheap.
"""
BURSTS_TOGETHER = 10
"""Bursts that the requests with one constraint may spend together. More lets many sequences of one costly constraint
delay a step for longer; fewer ends those of a harmless one, whose first masks are costly too, when many begin at once.
"""


class GrammarEnd(StrEnum):
    """Why a grammar has ended its request. The stop reason of the engine's output carries it."""

    TOO_SLOW = "baton: grammar too slow"
    TOO_COMPLEX = "baton: grammar too complex"
    """The grammar has passed a limit of the parser, which no longer knows what may follow."""
    CROWDED = "baton: the step's grammars too slow"
    """Grammars of other requests took the time of a step. The ended grammar itself may be cheap."""
    NOT_COMPILED = "baton: grammar not compiled"
    COMPILED_TOO_LATE = "baton: grammar compiled too late"


class GrammarBudget(msgspec.Struct, frozen=True):
    """What grammars may cost one engine, in seconds of CPU time."""

    step_s: float
    burst_s: float
    compile_timeout_s: float

    @classmethod
    def of(cls, config: GrammarBudgetConfig) -> "GrammarBudget":
        return cls(config.step_ms / 1000, config.burst_ms / 1000, config.compile_timeout_s)

    def share_s(self, num_requests: int) -> float:
        """What one of `num_requests` requests with grammars may take per token."""
        return self.step_s / max(num_requests, MIN_SHARERS)


class StepSpending:
    """What the grammars of one step have taken, in seconds of CPU time."""

    __slots__ = ("_most_s", "_most_unknown_s", "_spent_s")

    def __init__(self, burst_s: float) -> None:
        self._most_s = LONGEST_STEP_BURSTS * burst_s
        self._most_unknown_s = BURSTS_PER_STEP * burst_s
        self._spent_s = 0.0

    def begin(self) -> None:
        """Begin the next step."""
        self._spent_s = 0.0

    def spend(self, seconds: float) -> None:
        self._spent_s += seconds

    def has_room(self, *, is_cheap: bool) -> bool:
        """Whether one more mask may be made. `is_cheap`: the grammar's last mask took no more than its share."""
        return self._spent_s < (self._most_s if is_cheap else self._most_unknown_s)


class Allowance:
    """CPU time that one request, or all with one constraint, may spend, in seconds."""

    __slots__ = ("__weakref__", "_burst_s", "_left_s")

    def __init__(self, burst_s: float) -> None:
        self._burst_s = self._left_s = burst_s

    @property
    def is_overdrawn(self) -> bool:
        return self._left_s < 0.0

    def spend(self, seconds: float) -> None:
        self._left_s -= seconds

    def earn(self, seconds: float) -> None:
        """Add time, up to the burst. An overdrawn allowance stays overdrawn."""
        if not self.is_overdrawn:
            self._left_s = min(self._burst_s, self._left_s + seconds)

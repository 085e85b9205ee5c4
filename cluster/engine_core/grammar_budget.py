"""What a request's grammar may cost its engine, and how it ends where it costs more. Pure.

All requests of an engine wait for each other's grammars: they are followed between the steps, in the engine's only
thread. So each request has an allowance of CPU time. It begins with a burst. With each token it grows, up to the burst
again, by an equal share of what grammars may add to a step. A request that has overdrawn it is ended. Requests with the
same constraint have a few bursts together: many of them in one step would each have their own otherwise.

A step has some bursts, too, for all that are followed in it. Once they are spent, what is not known to be cheap is
ended before it is looked at, and at LONGEST_STEP_BURSTS whatever is left: a step of half a minute would be taken for
an engine that hangs.
"""

from enum import StrEnum

import msgspec

from cluster.config.structured_output import LONGEST_STEP_BURSTS, GrammarBudgetConfig

MIN_SHARERS = 8
"""Requests that a step's budget is divided by at least: one alone may not take all of it."""
BURSTS_PER_STEP = 15
"""That may be spent in one step before what is not known to be cheap is ended. More lets many different costly
constraints that begin together hold up a step for longer; fewer refuses honest ones, whose first masks are costly, when
many of them begin at once. More than BURSTS_TOGETHER, so that one constraint leaves something to the others.
"""
BURSTS_TOGETHER = 10
"""That the requests with one constraint may take together. More lets many sequences of one costly constraint hold up a
step for longer; fewer ends those of an honest one, whose first masks are costly, when many of them begin at once.
"""


class GrammarEnd(StrEnum):
    """Why a grammar has ended its request. Travels as the stop reason of the engine's output."""

    TOO_SLOW = "baton: grammar too slow"
    TOO_COMPLEX = "baton: grammar too complex"
    """It has passed a limit of the parser, which no longer knows what may follow."""
    CROWDED = "baton: the step's grammars too slow"
    """Others took what a step has. Its own may be as cheap as any."""
    NOT_COMPILED = "baton: grammar not compiled"
    COMPILED_TOO_LATE = "baton: grammar compiled too late"


class GrammarBudget(msgspec.Struct, frozen=True):
    """Of one engine, in seconds of CPU time."""

    step_s: float
    burst_s: float
    compile_timeout_s: float

    @classmethod
    def of(cls, config: GrammarBudgetConfig) -> "GrammarBudget":
        return cls(config.step_ms / 1000, config.burst_ms / 1000, config.compile_timeout_s)

    def share_s(self, num_requests: int) -> float:
        """What one of so many requests with grammars may take per token."""
        return self.step_s / max(num_requests, MIN_SHARERS)


class StepPurse:
    """What the grammars of one step have taken, in seconds of CPU time."""

    __slots__ = ("_most_s", "_most_unknown_s", "_spent_s")

    def __init__(self, burst_s: float) -> None:
        self._most_s = LONGEST_STEP_BURSTS * burst_s
        self._most_unknown_s = BURSTS_PER_STEP * burst_s
        self._spent_s = 0.0

    def begin(self) -> None:
        """Another step."""
        self._spent_s = 0.0

    def spend(self, seconds: float) -> None:
        self._spent_s += seconds

    def has_room(self, *, is_cheap: bool) -> bool:
        """For one more mask. `is_cheap`: of a grammar whose last one took no more than its share."""
        return self._spent_s < (self._most_s if is_cheap else self._most_unknown_s)


class Allowance:
    """Of one request, or of all with one constraint, in seconds of CPU time."""

    __slots__ = ("__weakref__", "_burst_s", "_left_s")

    def __init__(self, burst_s: float) -> None:
        self._burst_s = self._left_s = burst_s

    @property
    def is_overdrawn(self) -> bool:
        return self._left_s < 0.0

    def spend(self, seconds: float) -> None:
        self._left_s -= seconds

    def earn(self, seconds: float) -> None:
        """What is overdrawn stays so."""
        if not self.is_overdrawn:
            self._left_s = min(self._burst_s, self._left_s + seconds)

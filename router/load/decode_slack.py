"""What the requests that decode on a worker can still afford, summed up so that a placement can be weighed against it
in a few microseconds.

The slack of a resident is the time by which the rest of its decoding may be delayed until its TPOT exceeds its
objective: budget - elapsed - predicted rest. The budget is the objective times the expected number of gaps between its
tokens.
"""

from bisect import bisect_right
from math import exp
from typing import Final, final

from cluster.messages.ids import SloClass
from router.load.prefill_share import MIDDLE_S, SHORT_S, Shares

SLACK_SOFTNESS: Final = 0.1
"""Of the threshold at which a resident becomes a victim, as a share of its budget. Half of what is taken for a newcomer
(router/placement/cost.py): much of a resident's time is known already. With more, workers fill up until all who decode
there miss their objective by a little.
"""
HIGH_CLASS_WEIGHT: Final = 4.0
"""A victim of a higher class counts so much more."""
NUM_BINS: Final = 16

NUM_CLASSES: Final = len(SloClass)


@final
class Bin:
    """Residents whose chances are alike: their sums, and what follows once `close` is called."""

    __slots__ = ("budget_s", "miss", "num_by_rank", "num_left", "slack_s", "softness_s", "weights")

    def __init__(self) -> None:
        self.num_by_rank = [0.0] * NUM_CLASSES
        """Their numbers, by the rank of their class."""
        self.slack_s = self.budget_s = self.num_left = 0.0
        """Summed up; the mean of the slack and of the tokens to come once closed."""
        self.softness_s = 0.0
        self.miss = 0.0
        """Probability that one of them misses its objective as things are."""
        self.weights = [0.0] * NUM_CLASSES
        """How many they are to a new request, by the rank of its class."""

    def close(self) -> None:
        num = sum(self.num_by_rank)
        self.softness_s = SLACK_SOFTNESS * max(self.budget_s / num, 1e-3)
        higher = 0.0
        for rank in range(NUM_CLASSES):
            self.weights[rank] = HIGH_CLASS_WEIGHT * higher + (num - higher)
            higher += self.num_by_rank[rank]
        self.slack_s /= num
        self.num_left /= num
        self.miss = logistic(-self.slack_s / self.softness_s)


@final
class DecodeSlack:
    __slots__ = ("bins", "finish_s", "freed_tokens")

    def __init__(self, bins: list[Bin], finish_s: list[float], freed_tokens: list[float]) -> None:
        self.bins = bins
        self.finish_s = finish_s
        """When the residents are expected to end, from now, in order."""
        self.freed_tokens = freed_tokens
        """KV tokens that they leave by then, cumulated; starts with 0."""

    def finished_by(self, after_s: float) -> tuple[int, float]:
        """How many will have ended by then, and their KV tokens."""
        number = bisect_right(self.finish_s, after_s)
        return number, self.freed_tokens[number]

    def victims(self, stall_s: float, slowdown_s: float, rank: int) -> float:
        """Residents that would miss their TPOT objective because of a new request of a class of this rank, which stalls
        them once by `stall_s` and lengthens every later step by `slowdown_s`.
        """
        total = 0.0
        for group in self.bins:
            late = (stall_s + slowdown_s * group.num_left - group.slack_s) / group.softness_s
            if late > -8.0:
                total += group.weights[rank] * (logistic(late) - group.miss)
        return total


NOTHING: Final = DecodeSlack([], [], [0.0])


@final
class LookAhead:
    """Sums up the residents of one worker, added one by one."""

    __slots__ = ("_bins", "_finishing", "_long", "_middle", "_short", "_step_s")

    def __init__(self, step_s: float, duty: Shares) -> None:
        """`step_s`: what a step takes; `duty`: shares of the time that prompts take (router/load/prefill_share.py)."""
        short, middle, long = duty
        self._step_s = step_s
        self._short = step_s / (1.0 - short)
        self._middle = step_s / (1.0 - middle)
        self._long = step_s / (1.0 - long)
        self._bins: list[Bin | None] = [None] * NUM_BINS
        self._finishing: list[tuple[float, float]] = []

    def add(self, budget_s: float, elapsed_s: float, num_left: float, context_tokens: float, rank: int) -> None:
        """A request that decodes: its budget and what it has used of it (seconds), tokens still to come, KV tokens, and
        the rank of its class.
        """
        alone_s = num_left * self._step_s
        if alone_s <= SHORT_S:
            rest_s = num_left * self._short
        else:
            rest_s = num_left * (self._middle if alone_s <= MIDDLE_S else self._long)
        slack_s = budget_s - elapsed_s - rest_s
        self._finishing.append((rest_s, context_tokens + num_left))
        number = int((slack_s / budget_s + 0.5) * (NUM_BINS / 1.5)) if budget_s > 0.0 else 0
        if number < 0:
            number = 0
        elif number >= NUM_BINS:
            number = NUM_BINS - 1
        sums = self._bins[number]
        if sums is None:
            sums = self._bins[number] = Bin()
        sums.num_by_rank[rank] += 1.0
        sums.slack_s += slack_s
        sums.budget_s += budget_s
        sums.num_left += num_left

    def outlook(self) -> DecodeSlack:
        if not self._finishing:
            return NOTHING
        self._finishing.sort()
        finish_s, freed, total = list[float](), [0.0], 0.0
        for rest_s, tokens in self._finishing:
            total += tokens
            finish_s.append(rest_s)
            freed.append(total)
        bins = [sums for sums in self._bins if sums is not None]
        for sums in bins:
            sums.close()
        return DecodeSlack(bins, finish_s, freed)


def logistic(x: float) -> float:
    if x > 30.0:
        return 1.0
    return 0.0 if x < -30.0 else 1.0 / (1.0 + exp(-x))


def class_weight(victim: int, newcomer: int) -> float:
    """What a victim counts against a new request, by the ranks of their classes."""
    return HIGH_CLASS_WEIGHT if victim < newcomer else 1.0

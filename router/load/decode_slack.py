"""How much delay the requests that decode on a worker can still afford, summed up so that a placement can be weighed
against it in a few microseconds.

The decode slack of a request is the time by which the rest of its decoding may be delayed before its TPOT exceeds its
objective: budget - elapsed - predicted rest. The budget is the objective times the expected number of gaps between the
tokens of the request.
"""

from bisect import bisect_right
from math import exp, inf
from typing import Final, final

from cluster.messages.ids import SloClass
from router.load.prefill_share import MIDDLE_S, SHORT_S, Shares
from router.prediction.step_chunk import StepBound

HIGH_CLASS_WEIGHT: Final = 4.0
"""Victims that one victim of a higher class counts as. Higher has lower classes wait for little harm to higher
ones; lower lets lower classes delay interactive requests.
"""
LOW_CLASS_WEIGHT: Final = 1 / 16
"""Victims that one victim of a lower class counts as. Higher lets many requests of a lower class keep out those of
higher ones; lower makes the choice of a worker blind to the lower classes there.
"""
NUM_BINS: Final = 16
"""Groups of requests with a similar slack. More are exact and slow; fewer are coarse and fast."""

NUM_CLASSES: Final = len(SloClass)


@final
class Bin:
    """Running requests with a similar slack: their sums, and, after `close`, their means."""

    __slots__ = (
        "budget_s",
        "miss",
        "most_late_s",
        "most_softness_s",
        "num_by_rank",
        "num_left",
        "slack_s",
        "softness_s",
        "weights",
    )

    def __init__(self) -> None:
        self.num_by_rank = [0.0] * NUM_CLASSES
        """Number of requests, by the rank of their class."""
        self.slack_s = self.budget_s = self.num_left = 0.0
        """Sums. After `close`, the slack and the tokens to come (`num_left`) are means."""
        self.most_late_s = 0.0
        """By how much the objective is missed if all steps to come are as long as the engine lets them be; negative if
        it is kept all the same, inf on an engine whose steps have no bound. A sum, and a mean after `close`.
        """
        self.softness_s = self.most_softness_s = 0.0
        self.miss = 0.0
        """Probability that one of the requests misses its objective without a new request."""
        self.weights = [0.0] * NUM_CLASSES
        """Weight of all the requests as victims of a new request, by the rank of the new request's class."""

    def close(self, softness: float, most_softness: float) -> None:
        """Both of the threshold at which a request becomes a victim, as shares of its budget: `softness` by the
        prediction, and `most_softness` by the bound of the steps.
        """
        num = sum(self.num_by_rank)
        self.softness_s = softness * max(self.budget_s / num, 1e-3)
        self.most_softness_s = most_softness * max(self.budget_s / num, 1e-3)
        higher = 0.0
        for rank in range(NUM_CLASSES):
            own = self.num_by_rank[rank]
            self.weights[rank] = HIGH_CLASS_WEIGHT * higher + own + LOW_CLASS_WEIGHT * (num - higher - own)
            higher += own
        self.slack_s /= num
        self.num_left /= num
        self.most_late_s /= num
        self.miss = logistic(min(-self.slack_s / self.softness_s, self.most_late_s / self.most_softness_s))


@final
class DecodeSlack:
    __slots__ = (
        "_bound",
        "_crowded_step_s",
        "_most_step_s",
        "_step_s",
        "_tpot_s",
        "bins",
        "finish_s",
        "freed_tokens",
        "mean_budget_s",
    )

    def __init__(
        self,
        bins: list[Bin],
        finish_s: list[float],
        freed_tokens: list[float],
        step_s: float,
        crowded_step_s: float,
        tpot_s: float,
        bound: StepBound,
        mean_budget_s: float,
    ) -> None:
        """`mean_budget_s`: of the requests; `step_s`, `crowded_step_s`, `tpot_s` and `bound`: of the LookAhead."""
        self.bins = bins
        self.mean_budget_s = mean_budget_s
        self._step_s = step_s
        self._crowded_step_s = crowded_step_s
        self._most_step_s = bound.longest_step_s(crowded_step_s, tpot_s)
        self._tpot_s = tpot_s
        self._bound = bound
        self.finish_s = finish_s
        """When the running requests are expected to end, in seconds from now, in order."""
        self.freed_tokens = freed_tokens
        """KV tokens that are free at each of these times, cumulated. The first entry is 0."""

    def finished_by(self, after_s: float) -> tuple[int, float]:
        """Requests that will have ended after `after_s`, and their KV tokens."""
        number = bisect_right(self.finish_s, after_s)
        return number, self.freed_tokens[number]

    def victims(self, stall_s: float, slowdown_s: float, rank: int) -> float:
        """Running requests that would miss their TPOT objective because of a new request. The new request has a class
        of this rank, stalls every running request once by `stall_s`, and lengthens every later step by `slowdown_s`.
        """
        total = 0.0
        most_step_s, rise_s = self._most_step_s, 0.0
        if most_step_s < inf:
            rise_s = self._bound.longest_step_s(self._crowded_step_s + slowdown_s, self._tpot_s) - most_step_s
        for group in self.bins:
            most_s = group.num_left * (most_step_s - self._step_s)
            delay_s = stall_s if stall_s < most_s else most_s
            late = (delay_s + slowdown_s * group.num_left - group.slack_s) / group.softness_s
            most = (group.most_late_s + rise_s * group.num_left) / group.most_softness_s
            if most < late:
                late = most
            if late > -8.0:
                total += group.weights[rank] * (logistic(late) - group.miss)
        return total


NOTHING: Final = DecodeSlack([], [], [0.0], 0.0, 0.0, inf, StepBound(), 0.0)


@final
class LookAhead:
    """Sums up the running requests of one worker, which are added one by one."""

    __slots__ = (
        "_bins",
        "_bound",
        "_crowded_step_s",
        "_finishing",
        "_long",
        "_middle",
        "_most_step_s",
        "_short",
        "_softness",
        "_step_s",
        "_tpot_s",
    )

    def __init__(
        self,
        step_s: float,
        stall_share: Shares,
        softness: float,
        crowded_step_s: float = 0.0,
        tpot_s: float = inf,
        bound: StepBound | None = None,
    ) -> None:
        """`step_s`: length of a step; `stall_share`: of the worker (router/load/prefill_share.py); `softness`: of the
        threshold at which a request becomes a victim by the prediction, as a share of its budget; `crowded_step_s`:
        length of a step beside the requests that are to join, too; `tpot_s`: the objective by which the engine bounds
        its steps, inf on an engine that does not.
        """
        short, middle, long = stall_share
        self._step_s = step_s
        self._crowded_step_s = max(step_s, crowded_step_s)
        self._tpot_s = tpot_s
        self._softness = softness
        self._bound = bound or StepBound()
        self._most_step_s = most_step_s = self._bound.longest_step_s(self._crowded_step_s, tpot_s)
        self._short = min(most_step_s, step_s / (1.0 - short))
        self._middle = min(most_step_s, step_s / (1.0 - middle))
        self._long = min(most_step_s, step_s / (1.0 - long))
        self._bins: list[Bin | None] = [None] * NUM_BINS
        self._finishing: list[tuple[float, float]] = []

    def add(self, budget_s: float, elapsed_s: float, num_left: float, context_tokens: float, rank: int) -> None:
        """Add a running request: its budget, the part of the budget that is used (both in seconds), tokens still to
        come, KV tokens, and the rank of its class.
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
        sums.most_late_s += num_left * self._most_step_s - (budget_s - elapsed_s)

    def slack(self) -> DecodeSlack:
        if not self._finishing:
            return NOTHING
        self._finishing.sort()
        finish_s, freed, total = list[float](), [0.0], 0.0
        for rest_s, tokens in self._finishing:
            total += tokens
            finish_s.append(rest_s)
            freed.append(total)
        bins = [sums for sums in self._bins if sums is not None]
        budget_s = 0.0
        for sums in bins:
            budget_s += sums.budget_s
            sums.close(self._softness, self._bound.softness)
        mean_s = budget_s / len(finish_s)
        return DecodeSlack(bins, finish_s, freed, self._step_s, self._crowded_step_s, self._tpot_s, self._bound, mean_s)


def logistic(x: float) -> float:
    if x > 30.0:
        return 1.0
    return 0.0 if x < -30.0 else 1.0 / (1.0 + exp(-x))


def class_weight(victim: int, new: int) -> float:
    """The weight of a victim against a new request, by the ranks of their classes."""
    if victim == new:
        return 1.0
    return HIGH_CLASS_WEIGHT if victim < new else LOW_CLASS_WEIGHT

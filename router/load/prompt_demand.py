"""PromptDemand: how much of the workers' time prompts take, by how soon they are due after they come. Pure.

An engine that computes prompts by deadline lets a prompt that comes later overtake one that is due later. So a long
prompt with a loose objective waits for prompts that have not come yet. The demand says how many of them to expect.
"""

from math import log2
from typing import Final, final

from router.prediction.decaying import DecayingSum, remaining

WINDOW_S: Final = 20.0
"""Seconds after which 1/e of a prompt's demand still counts. Longer sees a change of traffic late; shorter takes a
burst for the usual.
"""
LEAST_SEEN_S: Final = 5.0
"""Seconds, at least, over which the first prompts of a new Scheduler are averaged. Lower takes a single prompt for a
steady stream of them; higher learns late what a new service gets.
"""
MOST_DEMAND: Final = 0.9
"""Most of the workers' time that prompts are expected to take. Higher expects a prompt that is overtaken to wait for
minutes; lower expects too short waits under overload, when prompts take nearly all time.
"""
LEAST_TTFT_S: Final = 0.125
"""TTFT objective, in seconds, at which the second group begins. Each further group is twice as wide. Lower makes groups
that hardly any prompt falls into; higher counts urgent prompts as less urgent ones.
"""
NUM_GROUPS: Final = 12
"""Groups of prompts by TTFT objective. Fewer count all long prompts as equally urgent; more cost time."""
LEAST_SHARE: Final = 1e-5
"""Share of the workers' time below which a group is left out. Higher forgets rare prompts; lower costs time."""
_CENTRE: Final = 1.41
"""The objective that stands for a group, as a multiple of its lower end: the geometric mean of both ends."""

Demand = list[tuple[float, float]]
"""By group: its TTFT objective, in seconds, and the share of the workers' time that its prompts take."""


@final
class PromptDemand:
    __slots__ = ("_began_at", "_groups", "_seconds", "_squares")

    def __init__(self) -> None:
        self._groups = [DecayingSum(WINDOW_S) for _ in range(NUM_GROUPS)]
        """Seconds of the workers' time."""
        self._seconds = DecayingSum(WINDOW_S)
        self._squares = DecayingSum(WINDOW_S)
        self._began_at: float | None = None

    def note(self, ttft_s: float, seconds: float, now: float) -> None:
        """A prompt with this TTFT objective was placed, which takes `seconds` of a worker's time."""
        if self._began_at is None:
            self._began_at = now
        self._group(ttft_s).add(seconds, now)
        self._seconds.add(seconds, now)
        self._squares.add(seconds * seconds, now)

    def take_back(self, ttft_s: float, seconds: float, placed_at: float, now: float) -> None:
        """A prompt that was noted at `placed_at` will not be computed. `seconds`: what was left of its time."""
        self._group(ttft_s).add(-seconds * remaining(now - placed_at, WINDOW_S), now)

    def usual_s(self, now: float) -> float:
        """Seconds that the prompt takes which workers compute at a random moment. So tiny prompts count for little,
        however many come. 0 without prompts.
        """
        seconds = self._seconds.at(now)
        return self._squares.at(now) / seconds if seconds else 0.0

    def at(self, now: float, num_workers: int) -> Demand:
        if self._began_at is None:
            return []
        seen_s = max(now - self._began_at, LEAST_SEEN_S)
        whole_s = num_workers * WINDOW_S * (1.0 - remaining(seen_s, WINDOW_S))
        found: Demand = []
        for number, group in enumerate(self._groups):
            share = group.at(now) / whole_s if group.value else 0.0
            if share > LEAST_SHARE:
                found.append((_CENTRE * LEAST_TTFT_S * 2.0 ** (number - 1), share))
        if (total := sum([share for _, share in found])) > MOST_DEMAND:
            return [(ttft_s, share * MOST_DEMAND / total) for ttft_s, share in found]
        return found

    def _group(self, ttft_s: float) -> DecayingSum:
        number = int(log2(ttft_s / LEAST_TTFT_S)) + 1 if ttft_s > LEAST_TTFT_S else 0
        return self._groups[min(number, NUM_GROUPS - 1)]


def overtaking_s(demand: Demand, done_s: float, left_s: float) -> float:
    """Time that later prompts take from a prompt which they overtake, in seconds. `done_s`: time until the prompt would
    be computed without them; `left_s`: time until its first token is due. A prompt that comes later overtakes it if it
    is due earlier.
    """
    seconds = 0.0
    for _ in range(2):  # what comes while the first ones are computed overtakes as well
        until_s, seconds = done_s + seconds, 0.0
        for ttft_s, share in demand:
            if ttft_s < left_s:
                seconds += share * min(until_s, left_s - ttft_s)
    return seconds

"""Which part of a conversation a prompt holds, and which summary stands for the rest. Pure.

A prompt has the turns from the *cut* on. It moves only when they have outgrown their budget, and then so far that they
do not do so again soon: in between, every prompt extends the one before it, whose KV blocks are found again. No state
is kept: the cut is replayed from the first item on, and each move depends on nothing but what had been said by then.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from cluster.config.context import ContextConfig


class Budget(NamedTuple):
    """Tokens."""

    limit: int
    """Of a whole prompt."""
    high: int
    """Of the turns that are sent: more moves the cut."""
    low: int
    """Of the turns that are left when it has moved."""
    step: int
    """Before the cut: more that no summary covers gets one."""
    memory: int
    summary: int


class SummaryPlace(NamedTuple):
    """A stored summary's place in the conversation."""

    covers: int
    """How many items it stands for, from the first one on."""
    after: int
    """How many items there were when it came."""


class Measured(NamedTuple):
    """A conversation with the numbers that a plan needs."""

    tokens: Sequence[int]
    """By item."""
    is_asked: Sequence[bool]
    """By item: whether it was sent to the model, rather than made by it."""
    starts: Sequence[int]
    """Where turns begin."""
    summaries: Sequence[SummaryPlace]

    @property
    def first(self) -> int:
        """Of the items of turns; before it are those of the system prompt."""
        return self.starts[0] if self.starts else len(self.tokens)


class Plan(NamedTuple):
    cut: int
    """The first item that is sent, but for the system prompt."""
    summary: SummaryPlace | None
    """Which stands for items before the cut."""


def budget_of(
    config: ContextConfig, window: int, answer: int | None, system: int, threshold: int | None = None
) -> Budget:
    """`answer`: the most tokens that it may have, if the client says so. `system`: what instructions and tools take.
    `threshold`: of a prompt, where the client wants it shorter than the window.
    """
    usual = int(config.answer_share * window)
    wanted = usual if answer is None else min(answer, window // 2)
    prompt = min(window - max(wanted, usual), threshold or window)
    memory, summary = int(config.memory_share * prompt), int(config.summary_share * prompt)
    high = max(0, min(int(config.history_share * prompt), prompt - system - memory - summary))
    return Budget(
        limit=window - wanted,
        high=high,
        low=int(config.low_water * high),
        step=int(config.summary_step * high),
        memory=memory,
        summary=summary,
    )


def plan(conversation: Measured, budget: Budget) -> Plan:
    """The last turn is sent however long it is."""
    ends = _ends(conversation)
    cut, summary = conversation.first, None
    summaries = _Summaries(conversation.summaries)
    if ends[-1] - ends[cut] <= budget.high:
        return Plan(cut, None)
    for number in range(conversation.first + 1, len(ends)):  # of items that are there
        if not conversation.is_asked[number - 1] and number < len(conversation.tokens):
            continue  # nothing was sent before there was more
        if ends[number] - ends[cut] > budget.high:
            cut, summary = _moved(conversation, ends, number, summaries, Plan(cut, summary), budget)
        elif ends[cut] - ends[summary.covers if summary else conversation.first] > budget.step:
            summary = summaries.newest(number, cut) or summary
    return Plan(cut, summary)


def next_cut(conversation: Measured, cut: int, num_tokens: int) -> int | None:
    """The next turn that leaves so many tokens fewer; None where the last turn is sent alone."""
    ends = _ends(conversation)
    later = [start for start in conversation.starts if start > cut]
    return next((start for start in later if ends[start] - ends[cut] >= num_tokens), later[-1] if later else None)


def to_summarize(conversation: Measured, cut: int, budget: Budget) -> int | None:
    """How many items, from the first one on, a summary should cover that is to be written now; None: none is needed.

    Before the cut no more than a step is left out; and what the next cut leaves out is covered when it comes.
    """
    ends, number = _ends(conversation), len(conversation.tokens)
    covered = ends[max((summary.covers for summary in conversation.summaries), default=conversation.first)]
    for wanted in (cut, _low_cut(conversation, ends, number, cut, budget)):
        if ends[wanted] - covered > budget.step:
            return wanted
    return None


def _ends(conversation: Measured) -> list[int]:
    """Tokens before each item, and of all."""
    return [0, *accumulate(conversation.tokens)]


class _Summaries:
    """Those of a conversation that grows."""

    def __init__(self, summaries: Sequence[SummaryPlace]) -> None:
        self._to_come = sorted(summaries, key=lambda summary: summary.after, reverse=True)
        self._there: list[SummaryPlace] = []
        """Sorted."""

    def newest(self, number: int, cut: int) -> SummaryPlace | None:
        """Of those that were there before the last of so many items, what covers most before the cut. `number`: no less
        than the last time.
        """
        while self._to_come and self._to_come[-1].after < number:
            insort(self._there, self._to_come.pop())
        end = bisect_right(self._there, SummaryPlace(cut, number))
        return self._there[end - 1] if end else None


def _moved(
    conversation: Measured, ends: list[int], number: int, summaries: _Summaries, before: Plan, budget: Budget
) -> Plan:
    """With so many items; to where a summary ends, if that is far enough: then nothing is lost."""
    cut = _low_cut(conversation, ends, number, before.cut, budget)
    newest = summaries.newest(number, cut)
    if newest is None:
        return Plan(cut, before.summary)
    is_enough = newest.covers > before.cut and ends[number] - ends[newest.covers] <= budget.low + budget.step
    return Plan(newest.covers if is_enough else cut, newest)


def _low_cut(conversation: Measured, ends: list[int], number: int, cut: int, budget: Budget) -> int:
    """The first turn from the cut on that leaves no more than the low mark of so many items, or else the last one."""
    starts = conversation.starts
    there = starts[bisect_left(starts, cut) : bisect_left(starts, number)]
    return next((start for start in there if ends[number] - ends[start] <= budget.low), there[-1] if there else cut)

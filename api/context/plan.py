"""Truncation: plans which part of a conversation a prompt has, and which summary stands for the rest. Pure.

A prompt has the turns from the *cut* on. The cut moves only when these turns have outgrown their budget, and then so
far that they do not outgrow it again soon. Between two moves every prompt extends the prompt before it, so that its KV
blocks are cached. No state is kept: the cut is replayed from the first item on, and each move depends only on the items
that were there at the time of the move.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from cluster.config.context import ContextConfig


class Budget(NamedTuple):
    """Bounds of the parts of a prompt, in tokens."""

    limit: int
    """The most tokens of a whole prompt."""
    high: int
    """The most tokens of the turns that are sent: beyond it the cut moves."""
    low: int
    """The most tokens of the turns that are sent after a move of the cut."""
    step: int
    """The most tokens before the cut that no summary covers: beyond it a summary is written."""
    memory: int
    """The most tokens of the messages that a turn is reminded of."""
    summary: int
    """The most tokens of a summary."""


class SummaryPlace(NamedTuple):
    """The place of a stored summary in the conversation."""

    covers: int
    """The number of items that the summary stands for, from the first one on."""
    after: int
    """The number of items in the conversation when the summary was stored."""


class Measured(NamedTuple):
    """A conversation with the numbers that a plan needs."""

    tokens: Sequence[int]
    """The tokens of each item."""
    is_asked: Sequence[bool]
    """For each item: whether it was sent to the model, rather than generated."""
    starts: Sequence[int]
    """The first item of each turn."""
    summaries: Sequence[SummaryPlace]

    @property
    def first(self) -> int:
        """The first item after the system prompt."""
        return self.starts[0] if self.starts else len(self.tokens)


class Plan(NamedTuple):
    cut: int
    """The first item after the system prompt that is sent."""
    summary: SummaryPlace | None
    """The summary that is sent in place of items before the cut."""


def budget_of(
    config: ContextConfig, window: int, answer: int | None, system: int, threshold: int | None = None
) -> Budget:
    """`answer`: the most tokens of the answer, if the client has set it. `system`: the tokens of instructions and
    tools. `threshold`: the most tokens of the prompt, if the client wants it shorter than the window.
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
    """The cut and the summary of the next prompt. The last turn is always sent, even if it exceeds the budget."""
    ends = _ends(conversation)
    cut, summary = conversation.first, None
    summaries = _Summaries(conversation.summaries)
    if ends[-1] - ends[cut] <= budget.high:
        return Plan(cut, None)
    for number in range(conversation.first + 1, len(ends)):  # replay: the conversation has its first `number` items
        if not conversation.is_asked[number - 1] and number < len(conversation.tokens):
            continue  # no prompt ended with a generated item
        if ends[number] - ends[cut] > budget.high:
            cut, summary = _moved(conversation, ends, number, summaries, Plan(cut, summary), budget)
        elif ends[cut] - ends[summary.covers if summary else conversation.first] > budget.step:
            summary = summaries.newest(number, cut) or summary
    return Plan(cut, summary)


def next_cut(conversation: Measured, cut: int, num_tokens: int) -> int | None:
    """The next turn from which the prompt is `num_tokens` shorter, or else the last turn. None if the last turn is
    already the only one.
    """
    ends = _ends(conversation)
    later = [start for start in conversation.starts if start > cut]
    return next((start for start in later if ends[start] - ends[cut] >= num_tokens), later[-1] if later else None)


def to_summarize(conversation: Measured, cut: int, budget: Budget) -> int | None:
    """The number of items, from the first one on, that a summary should cover which is written now. None if no summary
    is needed.

    At most `step` tokens before the cut stay without a summary, and the items that the next move of the cut leaves out
    are covered before that move.
    """
    ends, number = _ends(conversation), len(conversation.tokens)
    covered = ends[max((summary.covers for summary in conversation.summaries), default=conversation.first)]
    for wanted in (cut, _low_cut(conversation, ends, number, cut, budget)):
        if ends[wanted] - covered > budget.step:
            return wanted
    return None


def _ends(conversation: Measured) -> list[int]:
    """The tokens before each item, and last the tokens of all items."""
    return [0, *accumulate(conversation.tokens)]


class _Summaries:
    """The summaries of a conversation while it is replayed."""

    def __init__(self, summaries: Sequence[SummaryPlace]) -> None:
        self._to_come = sorted(summaries, key=lambda summary: summary.after, reverse=True)
        self._stored: list[SummaryPlace] = []
        """The summaries that are stored at this point of the replay, sorted."""

    def newest(self, number: int, cut: int) -> SummaryPlace | None:
        """The summary that covers most before the cut, among those that were stored before item `number` was appended.
        `number` must not be lower than at the call before.
        """
        while self._to_come and self._to_come[-1].after < number:
            insort(self._stored, self._to_come.pop())
        end = bisect_right(self._stored, SummaryPlace(cut, number))
        return self._stored[end - 1] if end else None


def _moved(
    conversation: Measured, ends: list[int], number: int, summaries: _Summaries, before: Plan, budget: Budget
) -> Plan:
    """The plan after a move of the cut in a conversation of `number` items. The cut moves to the end of a summary if
    that is far enough: then no item is left out without a summary.
    """
    cut = _low_cut(conversation, ends, number, before.cut, budget)
    newest = summaries.newest(number, cut)
    if newest is None:
        return Plan(cut, before.summary)
    is_enough = newest.covers > before.cut and ends[number] - ends[newest.covers] <= budget.low + budget.step
    return Plan(newest.covers if is_enough else cut, newest)


def _low_cut(conversation: Measured, ends: list[int], number: int, cut: int, budget: Budget) -> int:
    """The first turn from which on at most `low` tokens of `number` items are sent, or else the last turn."""
    starts = conversation.starts
    later = starts[bisect_left(starts, cut) : bisect_left(starts, number)]
    return next((start for start in later if ends[number] - ends[start] <= budget.low), later[-1] if later else cut)

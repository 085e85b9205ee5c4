"""How soon conversations come back after an answer, by how the answer ended. Pure.

The times are counted in intervals that double. From the counts follows the chance per second that a conversation that
has waited for some time comes back now. Its KV blocks are kept while the chance is at least LEAST_RETURNS_PER_S.

The counts begin with what is published or assumed of such conversations, and forget: learned times outweigh the
beginning after PRIOR_WEIGHT of them, and old ones fade.
"""

from bisect import bisect_left
from enum import StrEnum
from itertools import pairwise
from typing import Final, NamedTuple, final

EDGES_S: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
"""Ends of the intervals, in seconds. A conversation that has not come back at the last one counts as ended. A later
last end keeps blocks longer where returns are late; an earlier one takes late returns for none.
"""
LEAST_RETURNS_PER_S: Final = 1 / 60
"""Least chance per second that a conversation comes back, while which its blocks are kept. Higher keeps the blocks of
few conversations, for a short time; lower keeps them in the place of blocks that are as likely to be used.
"""
PRIOR_WEIGHT: Final = 20.0
"""Returns that the assumed times count as. More learns late; fewer follows chance."""
MOST_COUNTED: Final = 500.0
"""Returns of one kind after which all its counts are halved. More follows a change late; fewer follows chance."""
MOST_KINDS: Final = 1024
"""Kinds of conversations that are told apart. More takes memory (80 bytes each); fewer mixes kinds that differ."""


class AnswerEnding(StrEnum):
    """How an answer ended, for what comes after it."""

    STOP = "stop"
    """It is complete: a person reads it, or nobody comes back."""
    TOOL = "tool"
    """It calls tools, and the conversation waits for their results."""


class ReturnKind(NamedTuple):
    """Conversations that are counted together. Both groups are small numbers, which no name can be read from."""

    ending: AnswerEnding
    tenant: int = 0
    tools: int = 0


_ASSUMED: Final = {
    # 86 % of the next requests of agents come within 1 s and 95 % within 10 s (vllm-project/router#285).
    AnswerEnding.TOOL: (0.75, 0.86, 0.89, 0.92, 0.945, 0.96, 0.97, 0.98, 0.985),
    # Six in ten chats go on. Half of those that do have the next question after 30 s, and nine in ten after 120 s.
    AnswerEnding.STOP: (0.0, 0.0, 0.003, 0.018, 0.066, 0.168, 0.312, 0.456, 0.54),
}
"""Share of conversations that have come back, at each of EDGES_S."""


@final
class ReturnTimes:
    def __init__(self) -> None:
        self._counts: dict[ReturnKind, list[float]] = {}
        """Returns in each interval, and after them conversations that have not come back."""
        self._keep_s: dict[ReturnKind, float] = {}

    def returned(self, kind: ReturnKind, after_s: float) -> None:
        self._count(kind, bisect_left(EDGES_S, after_s))

    def ended(self, kind: ReturnKind) -> None:
        """A conversation has not come back in the last interval."""
        self._count(kind, len(EDGES_S))

    def keep_s(self, kind: ReturnKind) -> float:
        """Seconds after an answer for which blocks are worth keeping. 0 if they are not."""
        known = self._keep_s.get(kind)
        if known is None:
            counts = self._counts.get(kind) or _assumed(kind.ending)
            worth = [edge for i, edge in enumerate(EDGES_S) if _chance_per_s(counts, i) >= LEAST_RETURNS_PER_S]
            known = max(worth, default=0.0)
            if len(self._keep_s) < MOST_KINDS:
                self._keep_s[kind] = known
        return known

    def chance_per_s(self, kind: ReturnKind, waited_s: float) -> float:
        """Chance that a conversation comes back in the next second, if it has not come back for `waited_s`."""
        return _chance_per_s(self._counts.get(kind) or _assumed(kind.ending), bisect_left(EDGES_S, waited_s))

    def _count(self, kind: ReturnKind, interval: int) -> None:
        counts = self._counts.get(kind)
        if counts is None:
            if len(self._counts) >= MOST_KINDS:
                return
            counts = self._counts[kind] = _assumed(kind.ending)
        counts[interval] += 1.0
        if sum(counts) > MOST_COUNTED:
            counts[:] = [count / 2 for count in counts]
        self._keep_s.pop(kind, None)


def _assumed(ending: AnswerEnding) -> list[float]:
    shares = (0.0, *_ASSUMED[ending], 1.0)
    return [PRIOR_WEIGHT * (after - before) for before, after in pairwise(shares)]


def _chance_per_s(counts: list[float], interval: int) -> float:
    if interval >= len(EDGES_S):
        return 0.0
    still_away = sum(counts[interval:])
    width_s = EDGES_S[interval] - (EDGES_S[interval - 1] if interval else 0.0)
    return counts[interval] / still_away / width_s if still_away else 0.0

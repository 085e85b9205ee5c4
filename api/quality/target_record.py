"""TargetRecord: the last results of a worker on a path. Pure."""

from collections import deque
from collections.abc import Set
from typing import NamedTuple

from api.quality.comparison import Difference, ProbeResult

WINDOW = 8
"""Answers of a target that its score and its failing prompts are of. More forgets a fault later; fewer follows single
answers.
"""
STRIKES = 2
"""Different prompts that a worker must fail before a quarantine. More serves wrong answers for longer; one takes a
worker away for one answer that a rare rounding has changed.
"""


class TargetResult(NamedTuple):
    """What one probe has found."""

    result: ProbeResult
    difference: Difference | None = None
    prompt: str = ""
    num_prompts: int = 1
    """Prompts that could be asked for."""


class JudgedAnswer(NamedTuple):
    prompt: str
    is_right: bool
    difference: Difference | None
    at: float


class TargetRecord:
    def __init__(self) -> None:
        self._answers: deque[JudgedAnswer] = deque(maxlen=WINDOW)
        self._right: set[str] = set()
        self._has_one_prompt = False
        self.result: ProbeResult | None = None
        """The latest one."""
        self.at: float | None = None
        """When it came."""
        self.difference: Difference | None = None
        """The latest one that was not right, or that rounding explains."""
        self.streak = 0
        """Right answers in a row, or wrong ones if negative."""

    @property
    def score(self) -> float | None:
        """None without an answer."""
        return sum(one.is_right for one in self._answers) / len(self._answers) if self._answers else None

    @property
    def right(self) -> Set[str]:
        """The prompts whose latest answer was right, however long ago."""
        return self._right

    @property
    def failing(self) -> list[JudgedAnswer]:
        """Of each prompt whose latest answer is wrong: the first wrong one since the last right one, among the last
        answers. The oldest comes first.
        """
        found: dict[str, JudgedAnswer] = {}
        for one in self._answers:
            if one.is_right:
                found.pop(one.prompt, None)
            else:
                found.setdefault(one.prompt, one)
        return list(found.values())

    def has_struck_out(self, prompts: int) -> bool:
        """`prompts`: the failing ones that others do not fail. If only one prompt can be asked, two wrong answers to it
        in a row are enough.
        """
        return prompts >= STRIKES or (prompts > 0 and self._has_one_prompt and self.streak <= -STRIKES)

    def note(self, found: TargetResult, now: float) -> None:
        self.result, self.at = found.result, now
        self.difference = found.difference or self.difference
        if found.result in (ProbeResult.FAILED, ProbeResult.SKIPPED):
            return
        is_right = found.result.is_right
        self._answers.append(JudgedAnswer(found.prompt, is_right, found.difference, now))
        (self._right.add if is_right else self._right.discard)(found.prompt)
        self._has_one_prompt = found.num_prompts == 1
        if (self.streak > 0) is not is_right:
            self.streak = 0
        self.streak += 1 if is_right else -1

"""Which parts of an answer the guard has judged."""

from collections.abc import Collection

from api.safety.answer_screen import CONTEXT_LENGTH, WINDOW_LENGTH
from api.safety.guards.dialects.quoting import quoted


def unjudged(answer: str, judged: Collection[str]) -> list[str]:
    """The windows of an answer, as the guard is asked about them, that are not among the texts that it has judged. A
    part of a window at the end does not count.
    """
    ends = range(WINDOW_LENGTH, len(answer) + 1, WINDOW_LENGTH)
    windows = [quoted(answer[max(0, end - WINDOW_LENGTH - CONTEXT_LENGTH) : end]) for end in ends]
    return [window for window in windows if window not in judged]

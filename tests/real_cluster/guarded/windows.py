"""Which parts of an answer the guard has judged."""

from collections.abc import Collection

from api.safety.answer_screen import CONTEXT_LENGTH, WINDOW_LENGTH
from api.safety.guards.dialects.quoting import quoted


def unjudged(prompt: str, answer: str, judged: Collection[str]) -> list[str]:
    """The windows of a completion, as the guard is asked about them, that are not among the texts that it has judged. A
    part of a window at the end does not count. `prompt`: a short one, which the guard sees with the first windows.
    """
    whole = prompt + answer
    ends = range(len(prompt) + WINDOW_LENGTH, len(whole) + 1, WINDOW_LENGTH)
    windows = [quoted(whole[max(0, end - WINDOW_LENGTH - CONTEXT_LENGTH) : end]) for end in ends]
    return [window for window in windows if window not in judged]

"""The windows that the weights are fitted on: such as the ingress will judge. Pure."""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from api.safety.classifiers.features import MIN_WORDS, WINDOW_WORDS
from bench.safety.examples import Example

STRIDE = 6
"""Words between the ends of two windows of a text. Fewer make more windows that say the same."""
WORDS_BEFORE = (2, 12)
"""Words of other texts that a text is also shown after, at least and at most. More leave less of a harmful text in the
window; fewer have a harmful sentence found at the beginning of a text alone.
"""
EMBEDDED_WEIGHT = 0.5
"""What a text counts after other texts, against the same text alone. More finds a sentence in a long text more often,
and short texts less often.
"""


class TrainingWindow(NamedTuple):
    example: int
    """Its place among the examples."""
    words: Sequence[str]
    before: str
    """The word before the window, if any."""
    weight: float


def training_windows(examples: Sequence[Example], rng: Random) -> list[TrainingWindow]:
    """Each text is there alone, and after harmless ones. Of a harmless text, every beginning has to score low. Of a
    harmful one, the end has to score high, and each full window before it: what comes first may still be harmless.
    """
    harmless = [example.words for example in examples if example.is_harmless]
    windows: list[TrainingWindow] = []
    for place, example in enumerate(examples):
        before = (*rng.choice(harmless), *rng.choice(harmless))[-rng.randint(*WORDS_BEFORE) :]
        length = len(example.words)
        first = WINDOW_WORDS if example.is_positive else MIN_WORDS
        windows += _windows(place, example.words, [*range(first, length, STRIDE), length], 1.0)
        joined = (*before, *example.words[: WINDOW_WORDS - MIN_WORDS])
        first = len(joined) if example.is_positive else len(before) + 1
        windows += _windows(place, joined, [*range(first, len(joined), STRIDE), len(joined)], EMBEDDED_WEIGHT)
    return windows


def _windows(example: int, words: Sequence[str], ends: Sequence[int], weight: float) -> list[TrainingWindow]:
    """They share the weight."""
    begins = [max(0, end - WINDOW_WORDS) for end in ends]
    return [
        TrainingWindow(example, words[begin:end], words[begin - 1] if begin else "", weight / len(ends))
        for begin, end in zip(begins, ends, strict=True)
    ]

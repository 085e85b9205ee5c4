"""Word lists: prompts whose right answer is known without a reference run. A prompt is a list of different words, and
then the first three of them again.

The demo model goes on with the list, round after round. In the first round it has no place to read a word but where the
prompt says it, so each KV block of the prompt is needed: one that is zeroed, random or another prompt's makes the text
another one, by many nats. In prompts of 60, 150 and LONGEST tokens, from every start, the right word is at least 0.4
nats ahead of every other, mostly more than one, so that the numerics of another batch, another worker or a recomputed
prompt change nothing. Of other lengths a few have less. tests/component/drills/test_word_lists.py shows a sample of it.

Each word is one token, so the length of the text is its number of tokens: one that is lost or repeated shows too.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

WORDS_FILE = Path(__file__).with_name("words.txt")
WORDS = tuple(WORDS_FILE.read_text().split())
"""Words in an order that the demo model can follow from every start (tests/drills/find_words.py)."""
NUM_SAID_AGAIN = 3
"""Words that tell the model where to go on. One or two leave it in doubt."""
LONGEST = len(WORDS) + NUM_SAID_AGAIN
"""Tokens of the longest prompt."""
SURE_TOKENS = 1200
"""Of prompt and answer together. Beyond them the model errs by itself, later with shorter lists than with long ones."""
STRIDE = 291
"""Words between the starts of two seeds that follow each other. It shares no factor with the number of words, so that
all seeds below that number differ, and is far from simple parts of it, so that the starts of a few seeds in a row are
far from each other.
"""


@dataclass(frozen=True)
class WordList:
    words: tuple[str, ...]

    @property
    def prompt(self) -> str:
        return _said(self.words + self.words[:NUM_SAID_AGAIN])

    def answer(self, num_tokens: int) -> str:
        """The right text of so many tokens."""
        return _said(islice(cycle(self.words), NUM_SAID_AGAIN, NUM_SAID_AGAIN + num_tokens))

    def is_continued_by(self, text: str) -> bool:
        """Whether this is the beginning of a right text, be it in the middle of a word."""
        return self.answer(length_of(text)).startswith(text)


def word_list(seed: int, length: int) -> WordList:
    """`length`: of the prompt, in tokens. Another seed gives another start, so that the two share no KV block."""
    num_words = length - NUM_SAID_AGAIN
    assert NUM_SAID_AGAIN <= num_words <= len(WORDS)
    start = seed * STRIDE % len(WORDS)
    return WordList((WORDS * 2)[start : start + num_words])


def length_of(text: str) -> int:
    """Tokens of a right text, the one at its end perhaps not whole."""
    return text.count(" ")


def _said(words: Iterable[str]) -> str:
    return "".join(f" {word}" for word in words)

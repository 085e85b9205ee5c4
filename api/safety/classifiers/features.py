"""What the linear classifier sees of a text: words, their letter groups, and pairs of neighbours. Pure.

Words that the weights name have weights of their own. For all other words, the letter groups stand in: their weights
are found by a hash, as are those of pairs.
"""

from math import log, sqrt
from zlib import crc32

FEATURES_VERSION = 1
"""Changes whenever features do. Weights for another version mean nothing."""
NUM_HASHED_ROWS = 1 << 16
"""Rows of weights for letter groups and pairs. Fewer have more of them share a row; more make the file larger."""
WINDOW_WORDS = 16
"""Words that are judged together, at most. More let a sentence drown in the text before it; fewer lose its subject."""
MIN_WORDS = 3
"""Words of a text before it is judged. Fewer judge it by its first word; more let short texts pass."""
MOST_LETTERS = 20
"""Characters of a word that are looked at. More cost time for words that nobody writes; fewer mix up long words."""
CAUTIOUS_UP_TO = 512
"""Words of a text from which on its length costs no more. More lets harmless words at the beginning hide more; fewer
has long harmless texts found.
"""
GROUP_SIZES = (3, 4)
"""Letters of a group; bytes, in other alphabets. Shorter ones tell little; longer ones are hardly shared by words."""


def group_rows(word: str) -> list[int]:
    """The rows of a word's letter groups, with its ends marked."""
    edged = f"<{word[:MOST_LETTERS]}>".encode("utf-8", "surrogatepass")
    starts = [(at, size) for size in GROUP_SIZES for at in range(len(edged) - size + 1)]
    return [crc32(edged[at : at + size]) % NUM_HASHED_ROWS for at, size in starts]


def group_share(num_groups: int) -> float:
    """How much each group counts, so that all of a word's groups count about as much as one word."""
    return 1 / sqrt(num_groups or 1)


def pair_row(before: str, word: str) -> int:
    """The row of two neighbours. `before` is empty for the first word of a text."""
    pair = f"{before[:MOST_LETTERS]} {word[:MOST_LETTERS]}"
    return crc32(pair.encode("utf-8", "surrogatepass")) % NUM_HASHED_ROWS


def length_factor(num_words: int) -> float:
    """What the sum of a window of this many words is multiplied with, so that it does not score for its length."""
    return 1 / sqrt(num_words)


def length_caution(num_words: int) -> float:
    """How much longer a text is than a window, as a logarithm: the more windows, the more of them may mislead."""
    return log(min(max(num_words, WINDOW_WORDS), CAUTIOUS_UP_TO) / WINDOW_WORDS)

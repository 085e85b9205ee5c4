"""What a text is of, by a linear model per category.

The sum of a window is that of its words' weights. So the next word is added, the word that leaves is subtracted, and
nothing is looked at twice. Weights are whole numbers, so sums have no error that grows with the text.

A score orders texts; what share of texts it stands for is in docs/safety-classifier.md. The more words a text has had,
the more windows may have misled, so the same window scores less later on.
"""

import hashlib
import zipfile
import zlib
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from api.safety.classifiers.features import (
    CAUTIOUS_UP_TO,
    FEATURES_VERSION,
    MIN_WORDS,
    MOST_LETTERS,
    NUM_HASHED_ROWS,
    WINDOW_WORDS,
    group_rows,
    group_share,
    length_caution,
    length_factor,
    pair_row,
)
from api.safety.verdict import Category

WEIGHTS_FILE = "weights.npz"
"""The name of the file in the folder of a model."""
MOST_WORDS = 1 << 17
"""Words that weights name, at most. More takes memory in every ingress process: 8 bytes per word and category."""
_MOST_KEPT = 1 << 13
"""Words without weights of their own whose sums are kept. Fewer computes common ones again; more lets clients fill
memory: 250 bytes a word.
"""
_ZIP_DAMAGES = (EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error)
_DAMAGES = (OSError, AttributeError, KeyError, TypeError, ValueError, *_ZIP_DAMAGES)
"""What numpy raises for a file that is missing or damaged."""

Sums = NDArray[np.float64]
"""One number per category."""


class LinearWeights(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What the training has found. A row has one number per category."""

    categories: tuple[Category, ...]
    words: tuple[str, ...]
    word_rows: NDArray[np.int16]
    """Of each of `words`: all that it adds to a window, its letter groups included."""
    hashed_rows: NDArray[np.int16]
    """Of pairs, and of the letter groups of other words."""
    slopes: Sums
    offsets: Sums
    cautions: Sums
    """The log-odds of a window are sum x length_factor x slope + offset - caution x length_caution."""

    def __post_init__(self) -> None:
        number = len(self.categories)
        if not number or len(set(self.categories)) != number:
            raise ValueError("the categories are missing or repeated")
        if not 0 < len(self.words) <= MOST_WORDS or len(set(self.words)) != len(self.words):
            raise ValueError("the words are missing, repeated or too many")
        if self.word_rows.shape != (len(self.words), number) or self.hashed_rows.shape != (NUM_HASHED_ROWS, number):
            raise ValueError("there are not as many weights as words and categories")
        if {self.word_rows.dtype, self.hashed_rows.dtype} != {np.dtype(np.int16)}:
            raise ValueError("the weights are not whole numbers of 16 bits")
        for numbers in (self.slopes, self.offsets, self.cautions):
            if numbers.shape != (number,) or numbers.dtype != np.float64 or not np.isfinite(numbers).all():
                raise ValueError("the calibration is not one finite number per category")

    @property
    def version(self) -> str:
        digest = hashlib.sha256(f"{FEATURES_VERSION}\n{' '.join(self.categories)}\n{' '.join(self.words)}\n".encode())
        for numbers in (self.word_rows, self.hashed_rows, self.slopes, self.offsets, self.cautions):
            digest.update(np.ascontiguousarray(numbers).tobytes())
        return digest.hexdigest()[:16]

    def save(self, folder: Path) -> None:
        """The same weights make the same file."""
        np.savez_compressed(
            folder / WEIGHTS_FILE,
            features_version=np.array(FEATURES_VERSION),
            categories=_bytes_of(self.categories),
            words=_bytes_of(self.words),
            word_rows=self.word_rows,
            hashed_rows=self.hashed_rows,
            slopes=self.slopes,
            offsets=self.offsets,
            cautions=self.cautions,
        )

    @classmethod
    def load(cls, folder: Path) -> "LinearWeights":
        """Raises ValueError: the file is missing, damaged or of another version."""
        path = folder / WEIGHTS_FILE
        try:
            with np.load(BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
                if int(arrays["features_version"]) != FEATURES_VERSION:
                    raise ValueError(f"it is of another version than {FEATURES_VERSION}; train it anew")
                return cls(
                    categories=tuple(Category(name) for name in _texts_of(arrays["categories"])),
                    words=tuple(_texts_of(arrays["words"])),
                    word_rows=arrays["word_rows"],
                    hashed_rows=arrays["hashed_rows"],
                    slopes=arrays["slopes"],
                    offsets=arrays["offsets"],
                    cautions=arrays["cautions"],
                )
        except _DAMAGES as error:
            raise ValueError(f"{path} is not a classifier: {error}") from error


class LinearClassifier:
    """A linear model per category."""

    def __init__(self, weights: LinearWeights) -> None:
        self.version = weights.version
        self.categories: Sequence[Category] = weights.categories
        self._known = {word: row for row, word in enumerate(weights.words)}
        self._word_rows = weights.word_rows.astype(np.float64)
        self._hashed_rows = weights.hashed_rows.astype(np.float64)
        self._unknown: dict[str, Sums] = {}
        factors = np.array([length_factor(number) for number in range(1, WINDOW_WORDS + 1)])
        lengths = np.array([length_caution(number) for number in range(1, CAUTIOUS_UP_TO + 1)])
        self.slopes = factors[:, None] * weights.slopes / 2
        """For windows of one word, of two, and so on."""
        self.offsets = (weights.offsets - lengths[:, None] * weights.cautions) / 2
        """For texts of one word, of two, and so on. Halved, as are the slopes: sigmoid(x) is 0.5 + 0.5 tanh(x / 2),
        which never overflows.
        """

    @classmethod
    def load(cls, folder: Path) -> "LinearClassifier":
        """Raises ValueError: the file is missing, damaged or of another version."""
        return cls(LinearWeights.load(folder))

    def start(self) -> "LinearWindow":
        return LinearWindow(self)

    def added(self, before: str, word: str) -> Sums:
        """What a word adds to a window: whole numbers. `before` is the word before it in the text, if any."""
        known = self._known.get(word)
        own = self._sum_of_groups(word) if known is None else self._word_rows[known]
        return own + self._hashed_rows[pair_row(before, word)]

    def _sum_of_groups(self, word: str) -> Sums:
        kept = self._unknown.get(word)
        if kept is None:
            rows = group_rows(word)
            kept = np.rint(self._hashed_rows[rows].sum(axis=0) * group_share(len(rows)))
            if len(self._unknown) < _MOST_KEPT:
                self._unknown[word] = kept
        return kept


class LinearWindow:
    """The last words of one text, and the sum of what they add."""

    def __init__(self, classifier: LinearClassifier) -> None:
        self._classifier = classifier
        self._negligible = [0.0] * len(classifier.categories)
        self._sums = np.zeros(len(classifier.categories))
        self._added: list[Sums] = []
        """By word. Once the window is full, the oldest one is at `_num_words` modulo its length."""
        self._num_words = 0
        self._before = ""

    def add(self, word: str) -> Sequence[float]:
        word = word[:MOST_LETTERS]
        classifier, sums, number = self._classifier, self._sums, self._num_words
        added = classifier.added(self._before, word)
        sums += added
        if number < WINDOW_WORDS:
            self._added.append(added)
        else:
            place = number % WINDOW_WORDS
            sums -= self._added[place]
            self._added[place] = added
        self._before, self._num_words = word, number + 1
        if number + 1 < MIN_WORDS:
            return self._negligible
        likelihoods = sums * classifier.slopes[min(number, WINDOW_WORDS - 1)]
        likelihoods += classifier.offsets[min(number, CAUTIOUS_UP_TO - 1)]
        np.tanh(likelihoods, out=likelihoods)
        likelihoods *= 0.5
        likelihoods += 0.5
        return likelihoods.tolist()


def _bytes_of(texts: Sequence[str]) -> NDArray[np.uint8]:
    return np.frombuffer("\n".join(texts).encode(), dtype=np.uint8)


def _texts_of(encoded: NDArray[np.uint8]) -> list[str]:
    return encoded.tobytes().decode().split("\n")

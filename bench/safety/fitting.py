"""Logistic regression of all categories at once, over words, hashed rows and word vectors."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.sparse import csr_matrix

from api.safety.classifiers.features import (
    NUM_HASHED_ROWS,
    group_rows,
    group_share,
    length_caution,
    length_factor,
    pair_row,
)
from api.safety.classifiers.linear_classifier import LinearWeights
from api.safety.verdict import Category
from bench.safety.windows import TrainingWindow
from bench.safety.word_vectors import WordVectors

PENALTY = 0.1
"""Of the squares of weights. More has every text score alike; less learns the examples by heart."""
VECTOR_WEIGHT = 1.5
"""Length of a rare word's vector, where the word itself counts 1. More trusts likeness of words; less trusts the words
that examples have.
"""
FREQUENT = 1e-3
"""Share of all words from which a word's vector counts half or less. More lets words like "the" tell something."""
STEPS = 0.001
"""The part of the largest weight that a whole number stands for. More makes the file larger; less is less exact."""
_BIAS = 5.0
"""A constant beside the features, so that the penalty hardly bears on it."""
_MOST_ITERATIONS = 100

Numbers = NDArray[np.float64]


class Vocabulary:
    """Numbers of words, with what a vector counts for."""

    def __init__(self, windows: Sequence[TrainingWindow], vectors: WordVectors) -> None:
        counts = Counter(word for window in windows for word in window.words)
        self.num_seen = len(counts)
        """The first words are those of the windows. The others are known by their vectors alone."""
        known = dict.fromkeys([*sorted(counts), *vectors.words[: vectors.num_common]])
        self.numbers: Mapping[str, int] = {word: number for number, word in enumerate(known)}
        self.vectors = np.zeros((len(known), vectors.vectors.shape[1]))
        for word, vector in zip(vectors.words, vectors.vectors, strict=True):
            if word in self.numbers:
                share = counts[word] / counts.total()
                self.vectors[self.numbers[word]] = vector * VECTOR_WEIGHT * FREQUENT / (FREQUENT + share)


class Fitted(NamedTuple):
    """A row of weights for each word, each hashed row and each dimension, and one for the category alone."""

    seen: Numbers
    """Of the words of the windows."""
    hashed: Numbers
    vectors: Numbers
    """Of the dimensions of word vectors."""
    bias: Numbers


def fit(windows: Sequence[TrainingWindow], labels: Numbers, vocabulary: Vocabulary) -> Fitted:
    """`labels`: a row per window with a number per category, which is 1, 0, or NaN for what is not known."""
    sparse, dense = _matrices(windows, vocabulary)
    targets = np.nan_to_num(labels)
    weights = np.where(np.isnan(labels), 0.0, np.array([window.weight for window in windows])[:, None])
    transposed = sparse.T.tocsr()
    num_sparse, num_dense, number = sparse.shape[1], dense.shape[1], labels.shape[1]
    shape = (num_sparse + num_dense + 1, number)

    def loss(flat: Numbers) -> tuple[float, Numbers]:
        rows = flat.reshape(shape)
        sums = sparse @ rows[:num_sparse] + dense @ rows[num_sparse:-1] + _BIAS * rows[-1]
        off = 1 / (1 + np.exp(-np.clip(sums, -500, 500))) - targets
        gaps = np.logaddexp(0, np.where(targets > 0, -sums, sums))
        off *= weights
        gradient = np.vstack([transposed @ off, dense.T @ off, _BIAS * off.sum(axis=0, keepdims=True)])
        return float((gaps * weights).sum() + PENALTY / 2 * (rows**2).sum()), (gradient + PENALTY * rows).ravel()

    found = minimize(
        loss, np.zeros(shape[0] * shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": _MOST_ITERATIONS}
    )
    rows = found.x.reshape(shape)
    seen = vocabulary.num_seen
    return Fitted(rows[:seen], rows[seen:num_sparse], rows[num_sparse:-1], _BIAS * rows[-1])


class Calibration(NamedTuple):
    """What turns sums into log-odds: (sum - caution x length_caution(words of the text)) x slope + offset."""

    slopes: Numbers
    offsets: Numbers
    caution: float
    loss: float
    """How unlikely the labels are, given the probabilities."""


def plain(num_categories: int) -> Calibration:
    """Takes the sums for log-odds."""
    return Calibration(np.ones(num_categories), np.zeros(num_categories), 0.0, 0.0)


def whole(
    fitted: Fitted, vocabulary: Vocabulary, categories: Sequence[Category], calibration: Calibration
) -> LinearWeights:
    """The weights as the ingress has them."""
    of_words = vocabulary.vectors @ fitted.vectors
    of_words[: vocabulary.num_seen] += fitted.seen
    for word, number in vocabulary.numbers.items():
        rows = group_rows(word)
        of_words[number] += fitted.hashed[rows].sum(axis=0) * group_share(len(rows))
    step = STEPS * max(np.abs(of_words).max(), np.abs(fitted.hashed).max())
    return LinearWeights(
        categories=tuple(categories),
        words=tuple(vocabulary.numbers),
        word_rows=np.rint(of_words / step).astype(np.int16),
        hashed_rows=np.rint(fitted.hashed / step).astype(np.int16),
        slopes=step * calibration.slopes,
        offsets=fitted.bias * calibration.slopes + calibration.offsets,
        cautions=calibration.caution * calibration.slopes,
    )


def calibrated(odds: Sequence[Numbers], labels: Numbers, caution: float) -> Calibration:
    """`odds`: of each text, a row of sums per word. `labels`: a row per text: 1, 0, or NaN for what is not known. The
    highest sum of a text is what counts.
    """
    longest = max(len(rows) for rows in odds)
    losses = caution * np.array([length_caution(number) for number in range(1, longest + 1)])[:, None]
    highest = np.array([(rows - losses[: len(rows)]).max(axis=0) for rows in odds])
    lines = [_line(highest[:, at], labels[:, at]) for at in range(labels.shape[1])]
    slopes, offsets = np.array([line[0] for line in lines]), np.array([line[1] for line in lines])
    return Calibration(slopes, offsets, caution, sum(line[2] for line in lines))


def _line(scores: Numbers, labels: Numbers) -> tuple[float, float, float]:
    """Slope and offset that make log-odds of scores (Platt), and the loss."""
    is_known = ~np.isnan(labels)
    scores, labels = scores[is_known], labels[is_known]
    positive, negative = (labels > 0).sum(), (labels == 0).sum()
    targets = np.where(labels > 0, (positive + 1) / (positive + 2), 1 / (negative + 2))

    def loss(line: Numbers) -> tuple[float, Numbers]:
        odds = line[0] * scores + line[1]
        off = 1 / (1 + np.exp(-np.clip(odds, -500, 500))) - targets
        gaps = np.logaddexp(0, odds) - targets * odds
        return float(gaps.sum()), np.array([(off * scores).sum(), off.sum()])

    found = minimize(loss, np.array([1.0, 0.0]), jac=True, method="L-BFGS-B")
    return float(found.x[0]), float(found.x[1]), float(found.fun)


def _matrices(windows: Sequence[TrainingWindow], vocabulary: Vocabulary) -> tuple[csr_matrix, Numbers]:
    """A row per window: its words and hashed rows, and the sum of its words' vectors."""
    num_words = vocabulary.num_seen
    columns: list[int] = []
    values: list[float] = []
    ends = [0]
    dense = np.zeros((len(windows), vocabulary.vectors.shape[1]))
    groups = {word: group_rows(word) for word in list(vocabulary.numbers)[:num_words]}
    for number, window in enumerate(windows):
        factor = length_factor(len(window.words))
        before = window.before
        for word in window.words:
            rows = groups[word]
            columns += [vocabulary.numbers[word], num_words + pair_row(before, word), *(num_words + r for r in rows)]
            values += [factor, factor, *([factor * group_share(len(rows))] * len(rows))]
            before = word
        ends.append(len(columns))
        dense[number] = vocabulary.vectors[[vocabulary.numbers[word] for word in window.words]].sum(axis=0) * factor
    return csr_matrix((values, columns, ends), (len(windows), num_words + NUM_HASHED_ROWS)), dense

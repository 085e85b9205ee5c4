"""How the weights are made: fitted on the training parts, calibrated on scores that cross-validation gives."""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from random import Random

import numpy as np
from numpy.typing import NDArray

from api.safety.classifiers.linear_classifier import LinearClassifier, LinearWeights
from api.safety.verdict import Category
from bench.safety.examples import Example, label
from bench.safety.fitting import Calibration, Fitted, Numbers, Vocabulary, calibrated, fit, plain, whole
from bench.safety.split import HELD_OUT, NUM_PARTS
from bench.safety.windows import training_windows
from bench.safety.word_vectors import WordVectors

SEED = 18
WORDS_BEFORE = (0, 40, 160)
"""Words of harmless texts that each text is judged after, at least: one text to calibrate by for each number. More have
scores trusted less, as a long text has more windows that may mislead.
"""
CAUTIONS = tuple(number / 10 for number in range(16))
"""What the calibration tries: log-odds that a score loses whenever a text becomes e times as long."""
NUM_PROCESSES = 2
_MOST_LOG_ODDS = 20.0
"""In place of those of scores of 0 and 1."""


def train(
    examples: Sequence[Example], parts: NDArray[np.int64], categories: Sequence[Category], vectors: WordVectors
) -> LinearWeights:
    """The held-out part is not looked at."""
    learned = [part for part in range(NUM_PARTS) if part != HELD_OUT]
    of_part = {part: [e for e, p in zip(examples, parts, strict=True) if p == part] for part in learned}
    jobs = [[e for other in learned if other != part for e in of_part[other]] for part in learned]
    jobs.append([e for part in learned for e in of_part[part]])
    with ProcessPoolExecutor(NUM_PROCESSES, get_context("spawn")) as executor:
        *crossed, final = executor.map(partial(_fitted, categories=categories, vectors=vectors), jobs)
    judged = [(*one, of_part[part]) for one, part in zip(crossed, learned, strict=True)]
    return whole(*final, categories, _calibrated(judged, categories))


def labels_of(examples: Sequence[Example], categories: Sequence[Category]) -> Numbers:
    """A row per example: 1, 0, or NaN for what is not known."""
    found = [[label(example, category) for category in categories] for example in examples]
    return np.array([[np.nan if one is None else float(one) for one in row] for row in found])


def after(examples: Sequence[Example], num_words: int) -> list[tuple[str, ...]]:
    """Each text after harmless ones of the same part, of this many words at least."""
    rng = Random(SEED)
    harmless = [example.words for example in examples if example.is_harmless]
    return [chain(harmless, num_words, rng) + example.words for example in examples]


def chain(texts: Sequence[tuple[str, ...]], num_words: int, rng: Random) -> tuple[str, ...]:
    """Texts one after another, this many words at least."""
    words: tuple[str, ...] = ()
    while len(words) < num_words:
        words += rng.choice(texts)
    return words


def highest(classifier: LinearClassifier, texts: Sequence[Sequence[str]]) -> Numbers:
    """The highest scores of all beginnings of each text: what the ingress decides by."""
    return np.array([_scores(classifier, words).max(axis=0) for words in texts])


def _scores(classifier: LinearClassifier, words: Sequence[str]) -> Numbers:
    """A row per word."""
    window = classifier.start()
    return np.array([window.add(word) for word in words])


def _calibrated(
    crossed: Sequence[tuple[Fitted, Vocabulary, Sequence[Example]]], categories: Sequence[Category]
) -> Calibration:
    """By texts that the weights were not fitted on. One caution for all categories: the likeliest one."""
    odds: list[Numbers] = []
    labels: list[Numbers] = []
    for fitted, vocabulary, judged in crossed:
        classifier = LinearClassifier(whole(fitted, vocabulary, categories, plain(len(categories))))
        for num_words in WORDS_BEFORE:
            odds += [_log_odds(_scores(classifier, words)) for words in after(judged, num_words)]
            labels.append(labels_of(judged, categories))
    tried = (calibrated(odds, np.vstack(labels), caution) for caution in CAUTIONS)
    return min(tried, key=lambda one: one.loss)


def _fitted(
    examples: Sequence[Example], categories: Sequence[Category], vectors: WordVectors
) -> tuple[Fitted, Vocabulary]:
    windows = training_windows(examples, Random(SEED))
    vocabulary = Vocabulary(windows, vectors)
    labels = labels_of(examples, categories)[[window.example for window in windows]]
    return fit(windows, labels, vocabulary), vocabulary


def _log_odds(scores: Numbers) -> Numbers:
    with np.errstate(divide="ignore"):
        return np.clip(np.log(scores) - np.log1p(-scores), -_MOST_LOG_ODDS, _MOST_LOG_ODDS)

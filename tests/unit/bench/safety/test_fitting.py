"""That the fit separates what can be separated, leaves out what is not known, and that calibrated scores are shares."""

import numpy as np
import pytest

from api.safety.classifiers.linear_classifier import LinearClassifier
from api.safety.verdict import Category
from bench.safety.fitting import Numbers, Vocabulary, calibrated, fit, plain, whole
from bench.safety.windows import TrainingWindow
from bench.safety.word_vectors import WordVectors

VECTORS = WordVectors(["good", "fine", "bad", "vile"], 4, np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]]))
WINDOWS = [
    TrainingWindow(number, (word, "old", f"thing{number % 7}"), "", 1.0)
    for number, word in enumerate(["good", "bad"] * 30)
]
LABELS = np.array([[float(number % 2)] for number in range(60)])


def trained(labels: Numbers) -> LinearClassifier:
    vocabulary = Vocabulary(WINDOWS, VECTORS)
    weights = whole(fit(WINDOWS, labels, vocabulary), vocabulary, [Category.HATE], plain(1))
    return LinearClassifier(weights)


def score(classifier: LinearClassifier, words: list[str]) -> float:
    window = classifier.start()
    return [window.add(word)[0] for word in words][-1]


def test_words_that_tell_are_learned() -> None:
    classifier = trained(LABELS)
    assert score(classifier, ["bad", "old", "thing1"]) > 0.9
    assert score(classifier, ["good", "old", "thing1"]) < 0.1


def test_word_that_was_never_seen_scores_like_one_that_is_alike() -> None:
    classifier = trained(LABELS)
    assert score(classifier, ["vile", "old", "thing1"]) > score(classifier, ["fine", "old", "thing1"])


def test_what_is_not_known_teaches_nothing() -> None:
    masked = LABELS.copy()
    masked[1::2] = np.nan
    assert score(trained(masked), ["bad", "old", "thing1"]) < 0.3


def test_calibrated_score_is_the_share_of_texts_with_it() -> None:
    """Three quarters of the texts with a high sum are of the category, and none of the others."""
    odds = [np.array([[-9.0], [5.0]])] * 400 + [np.array([[-9.0], [-5.0]])] * 400
    labels = np.array([[float(number % 4 != 0)] for number in range(400)] + [[0.0]] * 400)
    found = calibrated(odds, labels, caution=0.0)
    assert 1 / (1 + np.exp(-(5 * found.slopes[0] + found.offsets[0]))) == pytest.approx(0.75, abs=0.02)


def test_long_text_is_trusted_less_if_it_misleads() -> None:
    high, low = np.array([[2.0]]), np.array([[-2.0]])
    late = np.vstack([low] * 200 + [high])
    odds = [*([high] * 50), *([low] * 50), *([late] * 50)]
    labels = np.array([[1.0]] * 50 + [[0.0]] * 100)
    assert calibrated(odds, labels, 1.0).loss < calibrated(odds, labels, 0.0).loss

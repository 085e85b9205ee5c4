"""What the classifier finds of held-out texts, and what it finds in harmless ones."""

from collections.abc import Sequence
from math import sqrt
from random import Random
from typing import NamedTuple

import numpy as np

from api.safety.classifiers.linear_classifier import LinearClassifier
from api.safety.verdict import HIGH_FROM, LOW_FROM, MEDIUM_FROM, Category, Level
from bench.safety.examples import HARMLESS, Example
from bench.safety.fitting import Numbers
from bench.safety.training import SEED, after, chain, highest, labels_of

LEVELS = {Level.LOW: LOW_FROM, Level.MEDIUM: MEDIUM_FROM, Level.HIGH: HIGH_FROM}
MEASURED_AFTER = (0, 60, 160)
"""Words of harmless texts before each text, at least: all is measured once for each number."""
SCORES_FROM = (0.0, 0.2, 0.35, 0.5, 0.65, 0.8)
"""Where the ranges of scores begin whose meaning is measured."""
LIKE_FROM = (0.0, 0.2, 0.3)
"""Where the ranges of likeness to the nearest learned text begin."""
LONG_WORDS = 200
"""Words of a long harmless text, at least."""
NUM_LONG = 100
_Z = 1.96
"""Of a 95 % interval."""


class Share(NamedTuple):
    """How many of how many."""

    found: int
    of: int

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval."""
        if not self.of:
            return 0.0, 1.0
        share, spread = self.found / self.of, _Z * _Z / self.of
        middle, half = share + spread / 2, _Z * sqrt((share * (1 - share) + spread / 4) / self.of)
        return max(0.0, (middle - half) / (1 + spread)), min(1.0, (middle + half) / (1 + spread))


class Quality(NamedTuple):
    """Of one category at one level."""

    precision: Share
    recall: Share
    near_misses: Share
    """Texts of the category's file that are not of it, and score as much."""


class TextQuality(NamedTuple):
    """Of all categories together at one level. A text counts once, in however many categories it scores so much."""

    precision: Share
    """Of the texts that score so much in a category, those that are of such a one."""
    recall: Share
    """Of the texts that are of a category, those that score so much in such a one."""


class ScoreRange(NamedTuple):
    """What the scores of a range stand for, over all pairs of a text and a category."""

    mean: float
    is_of: Share


class MeasuredAfter(NamedTuple):
    """Of texts after harmless words."""

    of_categories: dict[tuple[Category, Level], Quality]
    of_texts: dict[Level, TextQuality]
    ranges: list[ScoreRange]
    """For each of SCORES_FROM."""


class Measured(NamedTuple):
    after: dict[int, MeasuredAfter]
    """For each of MEASURED_AFTER."""
    by_likeness: list[Share]
    """For each of LIKE_FROM: of the texts of a category, those that are found at MEDIUM by themselves."""
    harmless: dict[tuple[str, Level], Share]
    """By kind of harmless text: those that score so much in any category."""


def measure(classifier: LinearClassifier, held_out: Sequence[Example], likeness: Numbers) -> Measured:
    """`likeness`: of each text to the nearest one that was learned."""
    rng = Random(SEED)
    kinds: dict[str, Sequence[Sequence[str]]] = {}
    for file in HARMLESS:
        texts = [example.words for example in held_out if example.file == file]
        kinds[file] = texts
        kinds[f"{file}, {LONG_WORDS} words of several"] = [chain(texts, LONG_WORDS, rng) for _ in range(NUM_LONG)]
    highest_of = {kind: highest(classifier, texts).max(axis=1) for kind, texts in kinds.items()}
    labels = labels_of(held_out, classifier.categories)
    scores_after = {number: highest(classifier, after(held_out, number)) for number in MEASURED_AFTER}
    return Measured(
        after={
            number: MeasuredAfter(
                of_categories=_qualities(classifier.categories, held_out, labels, scores),
                of_texts={level: text_quality(labels, scores, least) for level, least in LEVELS.items()},
                ranges=score_ranges(labels, scores),
            )
            for number, scores in scores_after.items()
        },
        by_likeness=recall_by_likeness(labels, scores_after[0], likeness),
        harmless={
            (kind, level): Share(int((scores >= least).sum()), len(scores))
            for kind, scores in highest_of.items()
            for level, least in LEVELS.items()
        },
    )


def text_quality(labels: Numbers, scores: Numbers, least: float) -> TextQuality:
    """Labels and scores have a row per text and a column per category."""
    is_hit, is_of = (scores >= least) & ~np.isnan(labels), labels == 1
    right = int((is_hit & is_of).any(axis=1).sum())
    return TextQuality(Share(right, int(is_hit.any(axis=1).sum())), Share(right, int(is_of.any(axis=1).sum())))


def score_ranges(labels: Numbers, scores: Numbers) -> list[ScoreRange]:
    """Labels and scores have a row per text and a column per category."""
    is_known = ~np.isnan(labels)
    number_of = np.digitize(scores, SCORES_FROM)
    found = []
    for number in range(1, len(SCORES_FROM) + 1):
        is_in = is_known & (number_of == number)
        share = Share(int(labels[is_in].sum()), int(is_in.sum()))
        found.append(ScoreRange(float(scores[is_in].mean()) if share.of else 0.0, share))
    return found


def recall_by_likeness(labels: Numbers, scores: Numbers, likeness: Numbers) -> list[Share]:
    number_of = np.digitize(likeness, LIKE_FROM)
    in_range = [number_of == number for number in range(1, len(LIKE_FROM) + 1)]
    return [text_quality(labels[is_in], scores[is_in], MEDIUM_FROM).recall for is_in in in_range]


def _qualities(
    categories: Sequence[Category], examples: Sequence[Example], labels: Numbers, scores: Numbers
) -> dict[tuple[Category, Level], Quality]:
    found: dict[tuple[Category, Level], Quality] = {}
    for column, category in enumerate(categories):
        is_of, is_not = labels[:, column] == 1, labels[:, column] == 0
        is_near = np.array([one.category is category and not one.is_positive for one in examples])
        for level, least in LEVELS.items():
            is_hit = scores[:, column] >= least
            hits = int((is_hit & is_of).sum())
            found[category, level] = Quality(
                precision=Share(hits, hits + int((is_hit & is_not).sum())),
                recall=Share(hits, int(is_of.sum())),
                near_misses=Share(int((is_hit & is_near).sum()), int(is_near.sum())),
            )
    return found

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
EMBEDDED_AFTER = 60
"""Words of harmless texts before a text that is measured within others, at least."""
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


class Measured(NamedTuple):
    alone: dict[tuple[Category, Level], Quality]
    """Of each text by itself."""
    embedded: dict[tuple[Category, Level], Quality]
    """Of each text after harmless ones."""
    harmless: dict[tuple[str, Level], Share]
    """By kind of harmless text: those that score so much in any category."""


def measure(classifier: LinearClassifier, held_out: Sequence[Example]) -> Measured:
    rng = Random(SEED)
    kinds: dict[str, Sequence[Sequence[str]]] = {}
    for file in HARMLESS:
        texts = [example.words for example in held_out if example.file == file]
        kinds[file] = texts
        kinds[f"{file}, {LONG_WORDS} words of several"] = [chain(texts, LONG_WORDS, rng) for _ in range(NUM_LONG)]
    highest_of = {kind: highest(classifier, texts).max(axis=1) for kind, texts in kinds.items()}
    return Measured(
        alone=_qualities(classifier, held_out, highest(classifier, after(held_out, 0))),
        embedded=_qualities(classifier, held_out, highest(classifier, after(held_out, EMBEDDED_AFTER))),
        harmless={
            (kind, level): Share(int((scores >= least).sum()), len(scores))
            for kind, scores in highest_of.items()
            for level, least in LEVELS.items()
        },
    )


def _qualities(
    classifier: LinearClassifier, examples: Sequence[Example], scores: Numbers
) -> dict[tuple[Category, Level], Quality]:
    labels = labels_of(examples, classifier.categories)
    found: dict[tuple[Category, Level], Quality] = {}
    for column, category in enumerate(classifier.categories):
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

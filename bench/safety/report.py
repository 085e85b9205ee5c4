"""The report on the classifier, as a page of the docs. Pure."""

import textwrap
from collections.abc import Mapping, Sequence

from api.safety.classifiers.features import MIN_WORDS, WINDOW_WORDS
from api.safety.verdict import Category, Level
from bench.safety.examples import HARMLESS, Example
from bench.safety.measurement import EMBEDDED_AFTER, LEVELS, LONG_WORDS, Measured, Quality, Share
from bench.safety.split import MOST_SIMILAR, NUM_PARTS

WIDTH = 140
"""Columns of the docs."""
LEAST_PRECISION, LEAST_RECALL = 0.8, 0.3
"""From which a level may block on its own: its precision, and what of the category it finds."""

Qualities = Mapping[tuple[Category, Level], Quality]


def report(measured: Measured, examples: Sequence[Example], held_out: Sequence[Example], version: str) -> str:
    parts = [
        "# The safety classifier",
        _paragraph(
            "This page is for operators who decide what their policies do on the scores of the classifier stage. "
            "`python -m bench.safety.train` writes it, together with the weights in conf/safety/classifier/, of "
            f"version `{version}`. With `--check` it fails if either is out of date."
        ),
        "## What it is",
        _what_it_is(),
        "## How it was measured",
        _how(examples, held_out),
        "## What it finds",
        _paragraph(
            "Precision is the share of the texts with so high a score that are of the category. Recall is the "
            "share of the category's texts that score so much. Brackets have Wilson's 95 % interval. The last "
            "column has the near misses of the category's own file: texts that look like it, and are not."
        ),
        _found(measured.alone),
        _paragraph(
            f"The same texts at the end of a longer one, after {EMBEDDED_AFTER} words or more of harmless texts. A "
            "longer text has more windows that may mislead, so scores are trusted less, and less is found:"
        ),
        _embedded(measured.embedded),
        "## What it finds in harmless texts",
        _paragraph(
            "The share of harmless texts that score so much in any category at all. The long ones are put "
            "together from the short ones above them, so a text that misleads is in many of them, and their "
            "intervals are too narrow:"
        ),
        _harmless(measured.harmless),
        "## What it is good for",
        _advice(measured),
        "## What the figures do not show",
        _limits(),
    ]
    return "\n\n".join(parts) + "\n"


def _what_it_is() -> str:
    return _list(
        f"A linear model per category, over the last {WINDOW_WORDS} words: the words, their letter groups, and "
        "pairs of neighbours. It runs in the ingress, in some ten microseconds per word.",
        f"Each beginning of a text of {MIN_WORDS} words or more is judged, and the highest score decides. So the "
        "calibration was made with the highest scores, too, of texts that the weights were not fitted on.",
        "A score is a probability, given the mix of texts that it was calibrated on: each example alone, after "
        "40 words of harmless texts, and after 160. So a text alone is of the category somewhat more often than "
        "its score says, and a long one less often. Where fewer texts are harmful than here, as in most traffic, "
        "a score promises less.",
        "Words that no example has are known by words that are alike: vectors of 22,000 English words, made with the "
        "model all-MiniLM-L6-v2 (Apache-2.0), are folded into the weights (`bench/safety/word_vectors.py`).",
        "There are no examples for `sexual/minors`, on purpose. That category has no classifier: lists and the guard "
        "are what finds it. `personal-data` has a stage of its own.",
        "A deployment can plug in a model of its own (`api/safety/classifiers/classifier_loading.py`).",
    )


def _how(examples: Sequence[Example], held_out: Sequence[Example]) -> str:
    num_harmless = sum(example.is_harmless for example in examples)
    files = ", ".join(f"`{file}.tsv`" for file in HARMLESS)
    return _list(
        f"{len(examples):,} texts in conf/safety/examples/, of which {num_harmless:,} are harmless ({files}). The "
        "others are in a file per category, half of them near misses.",
        f"{len(held_out):,} of them were held out: one part of {NUM_PARTS}. Neither the weights nor the "
        "calibration have seen them. Lines of a file that follow each other are in one part, as far as it goes. "
        f"So are texts with much the same words in whichever files (cosine above {MOST_SIMILAR}).",
        "Settings were chosen by another part. But the held-out part was looked at a few times on the way: that long "
        "texts are trusted less, and that there are technical texts, are consequences. So the figures may flatter.",
        "What is of `hate/threatening` is of `hate`, too, and so with the other categories that have a parent. "
        "Where a text may well be of another category, it does not count for that category.",
    )


def _found(qualities: Qualities) -> str:
    rows = ["| category | level | precision | recall | near misses |", "|---|---|---|---|---|"]
    for (category, level), quality in qualities.items():
        name = f"`{category}`" if level is Level.LOW else ""
        rows.append(f"| {name} | {level} | {' | '.join(map(_share, quality))} |")
    return "\n".join(rows)


def _embedded(qualities: Qualities) -> str:
    rows = [f"| category | {' | '.join(f'recall at {level}' for level in LEVELS)} |", "|---|---|---|---|"]
    for category in dict.fromkeys(category for category, _ in qualities):
        shares = [_share(qualities[category, level].recall) for level in LEVELS]
        rows.append(f"| `{category}` | {' | '.join(shares)} |")
    return "\n".join(rows)


def _harmless(harmless: Mapping[tuple[str, Level], Share]) -> str:
    rows = [f"| texts | {' | '.join(LEVELS)} |", "|---|---|---|---|"]
    for kind in dict.fromkeys(kind for kind, _ in harmless):
        rows.append(f"| {kind} | {' | '.join(_share(harmless[kind, level]) for level in LEVELS)} |")
    return "\n".join(rows)


def _advice(measured: Measured) -> str:
    fit = _fit_to_block(measured.alone, Level.MEDIUM)
    unfit = [category for category, level in measured.alone if level is Level.MEDIUM and category not in fit]
    high = [quality for (_, level), quality in measured.alone.items() if level is Level.HIGH]
    right, hits = sum(q.precision.found for q in high), sum(q.precision.of for q in high)
    found, of = sum(q.recall.found for q in high), sum(q.recall.of for q in high)
    return _list(
        "LOW is for waking the guard, never for blocking. It finds the most, and long harmless texts reach it often.",
        f"At MEDIUM, these categories have a precision of {LEAST_PRECISION} and a recall of {LEAST_RECALL} or "
        f"more on the held-out texts: {_names(fit)}.",
        f"The quality of the others is too poor to block on MEDIUM without a guard behind it: {_names(unfit)}.",
        f"HIGH finds little: over all categories {_share(Share(found, of))} of what is of them. It is right in "
        f"{_share(Share(right, hits))} of its hits. It may block without a guard, if most may get through.",
        "No level is good enough to be all that stands between a model and harm. The stage is there to be cheap: "
        "it saves most short harmless texts a call of the guard.",
    )


def _fit_to_block(qualities: Qualities, level: Level) -> list[Category]:
    return [
        category
        for (category, at), quality in qualities.items()
        if at is level and _value(quality.precision) >= LEAST_PRECISION and _value(quality.recall) >= LEAST_RECALL
    ]


def _limits() -> str:
    return _list(
        "The texts are synthetic: they were written for this project, by few authors with one style. Real users "
        "write differently, and what real models write is hardly there. Expect worse figures on real traffic.",
        "There are few texts: one text more or less moves a recall by two to four points. Mind the intervals.",
        "Nearly all are English. Harm in other languages is not found.",
        "The technical texts are from Baton's own docs and from two licences. Other manuals and licences score more.",
        f"Texts of much more than {LONG_WORDS} words were not measured.",
        "Nobody tried to get past it. Spelling tricks are undone before it (`api/safety/scans/normalise.py`), but "
        "other words for the same thing, or harmless words around it, lower the score.",
        "Manuals and mails are full of orders, which prompt injection is hard to tell from. The examples show "
        "orders to a model in plain English, and none that are hidden in code.",
    )


def _value(share: Share) -> float:
    return share.found / share.of if share.of else 0.0


def _share(share: Share) -> str:
    if not share.of:
        return "- (0/0)"
    low, high = share.interval
    return f"{_value(share):.2f} [{low:.2f}, {high:.2f}] ({share.found}/{share.of})"


def _names(categories: Sequence[Category]) -> str:
    return ", ".join(f"`{category}`" for category in categories) or "none"


def _paragraph(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _list(*items: str) -> str:
    filled = [textwrap.fill(item, WIDTH - 2, break_long_words=False, break_on_hyphens=False) for item in items]
    return "\n".join(f"- {textwrap.indent(item, '  ').lstrip()}" for item in filled)

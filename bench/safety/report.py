"""The report on the classifier, as a page of the docs. Pure."""

import textwrap
from collections.abc import Mapping, Sequence
from itertools import pairwise

from api.safety.classifiers.features import MIN_WORDS, WINDOW_WORDS
from api.safety.verdict import Category, Level
from bench.safety.examples import HARMLESS, Example
from bench.safety.measurement import (
    LEVELS,
    LIKE_FROM,
    LONG_WORDS,
    MEASURED_AFTER,
    SCORES_FROM,
    Measured,
    MeasuredAfter,
    Quality,
    Share,
)
from bench.safety.split import MOST_SIMILAR, NUM_PARTS

WIDTH = 140
"""Columns of the docs."""
LEAST_PRECISION, LEAST_RECALL = 0.8, 0.3
"""From which a level may block on its own: its precision, and what of the category it finds, in long texts as well."""

ByNumWords = Mapping[int, MeasuredAfter]


def report(measured: Measured, examples: Sequence[Example], held_out: Sequence[Example], version: str) -> str:
    num_harmful = measured.after[0].of_texts[Level.LOW].recall.of
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
        _how(examples, held_out, measured.by_likeness),
        "## What a score means",
        _paragraph(
            "Of the pairs of a text and a category with a score in a range: the mean score, and the share where the "
            "text is of the category. The same texts are judged alone, and after harmless words. Where fewer texts "
            "are harmful than here, as in most traffic, the shares are lower:"
        ),
        _ranges(measured.after),
        "## What it finds",
        _paragraph(
            "Precision is the share of the texts with so high a score that are of the category. It is of this mix, "
            f"where {num_harmful} of {len(held_out):,} texts are of a category. Where fewer are, it is lower. "
            "Recall is the share of the category's texts that score so much. Brackets have Wilson's 95 % interval. The "
            "last column has the near misses of the category's own file: texts that look like it, and are not."
        ),
        _found(measured.after[0].of_categories),
        _paragraph(
            f"The same texts after harmless ones, of {' and of '.join(map(str, MEASURED_AFTER[1:]))} words or more. "
            "Hard negatives are among those. A longer text has more windows that may mislead. So scores are trusted "
            "less, and even so many more hits are wrong. Recall counts a hit that the words before made, too. Each "
            "harmless text is before several others, so the intervals are too narrow:"
        ),
        _embedded(measured.after),
        _paragraph(
            "All categories together. A text counts once, and is right if it is of one of the categories in which it "
            "scores so much:"
        ),
        _of_texts(measured.after),
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
        "A score orders texts. It is no probability: it was calibrated on each example alone, after 40 words of "
        "harmless texts, and after 160, all together. How it relates to a share of texts is in a table below.",
        "Words that no example has are known by words that are alike: vectors of 22,000 English words, made with the "
        "model all-MiniLM-L6-v2 (Apache-2.0), are folded into the weights (`bench/safety/word_vectors.py`).",
        "There are no examples for `sexual/minors`, on purpose. That category has no classifier: lists and the guard "
        "are what finds it. `personal-data` has a stage of its own.",
        "A deployment can plug in a model of its own (`api/safety/classifiers/classifier_loading.py`).",
    )


def _how(examples: Sequence[Example], held_out: Sequence[Example], by_likeness: Sequence[Share]) -> str:
    num_harmless = sum(example.is_harmless for example in examples)
    files = ", ".join(f"`{file}.tsv`" for file in HARMLESS)
    return _list(
        f"{len(examples):,} texts in conf/safety/examples/, of which {num_harmless:,} are harmless ({files}). The "
        "others are in a file per category, half of them near misses.",
        f"{len(held_out):,} of them were held out: one part of {NUM_PARTS}. Neither the weights nor the "
        "calibration have seen them. Lines of a file that follow each other are in one part, as far as it goes. "
        f"So are texts with much the same words in whichever files (cosine above {MOST_SIMILAR}).",
        "Texts that resemble a learned one are easier to find. Of the texts that are of a category, MEDIUM finds, by "
        f"the cosine to the nearest learned text, {_likeness(by_likeness)}. So of texts that are unlike the examples, "
        "expect no more than the first.",
        "Settings were chosen by another part. But the held-out part was looked at a few times on the way: that long "
        "texts are trusted less, and that there are technical texts, are consequences. So the figures may flatter.",
        "What is of `hate/threatening` is of `hate`, too, and so with the other categories that have a parent. "
        "Where a text may well be of another category, it does not count for that category.",
    )


def _likeness(by_likeness: Sequence[Share]) -> str:
    ranges = pairwise((*LIKE_FROM, MOST_SIMILAR))
    named = zip(ranges, by_likeness, strict=True)
    return ", ".join(f"{_share(share)} from {least} to {most}" for (least, most), share in named)


def _ranges(after: ByNumWords) -> str:
    rows = [f"| scores from | {' | '.join(map(_after, after))} |", f"|---|{'---|' * len(after)}"]
    for number, least in enumerate(SCORES_FROM):
        ranges = [one.ranges[number] for one in after.values()]
        cells = [f"{mean:.2f} -> {_value(share):.2f} ({share.found}/{share.of})" for mean, share in ranges]
        rows.append(f"| {least} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _found(qualities: Mapping[tuple[Category, Level], Quality]) -> str:
    rows = ["| category | level | precision | recall | near misses |", "|---|---|---|---|---|"]
    for (category, level), quality in qualities.items():
        name = f"`{category}`" if level is Level.LOW else ""
        rows.append(f"| {name} | {level} | {' | '.join(map(_share, quality))} |")
    return "\n".join(rows)


def _embedded(after: ByNumWords) -> str:
    longer = {number: one.of_categories for number, one in after.items() if number}
    heads = [f"{figure} {_after(number)}" for number in longer for figure in ("precision", "recall")]
    rows = [f"| category | level | {' | '.join(heads)} |", f"|---|---|{'---|' * len(heads)}"]
    for category, level in after[0].of_categories:
        name = f"`{category}`" if level is Level.LOW else ""
        shares = [share for qualities in longer.values() for share in qualities[category, level][:2]]
        rows.append(f"| {name} | {level} | {' | '.join(map(_share, shares))} |")
    return "\n".join(rows)


def _of_texts(after: ByNumWords) -> str:
    rows = ["| texts | level | precision | recall |", "|---|---|---|---|"]
    for number, one in after.items():
        for level, quality in one.of_texts.items():
            name = _after(number) if level is Level.LOW else ""
            rows.append(f"| {name} | {level} | {' | '.join(map(_share, quality))} |")
    return "\n".join(rows)


def _harmless(harmless: Mapping[tuple[str, Level], Share]) -> str:
    rows = [f"| texts | {' | '.join(LEVELS)} |", "|---|---|---|---|"]
    for kind in dict.fromkeys(kind for kind, _ in harmless):
        rows.append(f"| {kind} | {' | '.join(_share(harmless[kind, level]) for level in LEVELS)} |")
    return "\n".join(rows)


def _advice(measured: Measured) -> str:
    fit = _fit_to_block(measured.after, Level.MEDIUM)
    unfit = [category for category, level in measured.after[0].of_categories if level is Level.MEDIUM]
    unfit = [category for category in unfit if category not in fit]
    return _list(
        "LOW is for waking the guard, never for blocking. It finds the most, and long harmless texts reach it often.",
        f"At MEDIUM, these categories have a precision of {LEAST_PRECISION} and a recall of {LEAST_RECALL} or "
        f"more on the held-out texts, both alone and after harmless words: {_names(fit)}.",
        f"The quality of the others is too poor to block on MEDIUM without a guard behind it: {_names(unfit)}.",
        _high(measured.after),
        "No level is good enough to be all that stands between a model and harm. The stage is there to be cheap: "
        "it saves most short harmless texts a call of the guard.",
    )


def _high(after: ByNumWords) -> str:
    of_texts = {number: one.of_texts[Level.HIGH] for number, one in after.items()}
    right = ", ".join(f"{_after(number)} {_share(quality.precision)}" for number, quality in of_texts.items())
    good = [number for number, quality in of_texts.items() if _value(quality.precision) >= LEAST_PRECISION]
    advice = "So it should not block without a guard."
    if len(good) == len(of_texts):
        advice = "So it may block without a guard, if most may get through."
    elif 0 in good:
        advice = "So without a guard it may block short texts, if most may get through, but not long ones."
    found = _share(of_texts[0].recall)
    return (
        f"HIGH finds little: alone {found} of the texts that are of a category. Its hits are right: {right}. {advice}"
    )


def _fit_to_block(after: ByNumWords, level: Level) -> list[Category]:
    """By the worst figures, over all lengths."""
    of_all = [one.of_categories for one in after.values()]
    return [
        category
        for category, at in of_all[0]
        if at is level
        and min(_value(one[category, at].precision) for one in of_all) >= LEAST_PRECISION
        and min(_value(one[category, at].recall) for one in of_all) >= LEAST_RECALL
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


def _after(num_words: int) -> str:
    return f"after {num_words} words" if num_words else "alone"


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

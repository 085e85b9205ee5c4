"""The form of the report, and what it advises."""

from api.safety.verdict import Category
from bench.safety.examples import HARMLESS
from bench.safety.measurement import (
    LEVELS,
    LIKE_FROM,
    MEASURED_AFTER,
    SCORES_FROM,
    Measured,
    MeasuredAfter,
    Quality,
    ScoreRange,
    Share,
    TextQuality,
)
from bench.safety.report import WIDTH, report

GOOD, POOR = Share(9, 10), Share(1, 10)


def all_are(share: Share) -> MeasuredAfter:
    return MeasuredAfter(
        of_categories={(category, level): Quality(share, share, share) for category in Category for level in LEVELS},
        of_texts={level: TextQuality(share, share) for level in LEVELS},
        ranges=[ScoreRange(least, share) for least in SCORES_FROM],
    )


def report_of(alone: Share, in_long_texts: Share) -> str:
    after = {number: all_are(in_long_texts if number else alone) for number in MEASURED_AFTER}
    harmless = {(file, level): alone for file in HARMLESS for level in LEVELS}
    return report(Measured(after, [alone] * len(LIKE_FROM), harmless), [], [], "abc")


def sentences(text: str) -> str:
    """Without line breaks."""
    return " ".join(text.split())


def test_lines_are_as_long_as_those_of_the_docs() -> None:
    lines = report_of(GOOD, GOOD).splitlines()
    assert [line for line in lines if len(line) > WIDTH and not line.startswith("|")] == []


def test_all_rows_of_a_table_have_as_many_cells() -> None:
    tables = [part.splitlines() for part in report_of(GOOD, POOR).split("\n\n") if part.startswith("|")]
    assert len(tables) == 5
    assert all(len({row.count("|") for row in table}) == 1 for table in tables)


def test_categories_that_are_good_enough_are_named() -> None:
    assert "a guard behind it: none" in sentences(report_of(GOOD, GOOD))


def test_category_that_is_poor_in_long_texts_alone_is_not_fit_to_block() -> None:
    assert "after harmless words: none" in sentences(report_of(GOOD, POOR))


def test_high_may_block_only_texts_of_a_length_at_which_it_is_right() -> None:
    assert "So it may block without a guard" in sentences(report_of(GOOD, GOOD))
    assert "it may block short texts, if most may get through, but not long ones" in sentences(report_of(GOOD, POOR))
    assert "So it should not block without a guard" in sentences(report_of(POOR, POOR))


def test_figure_without_texts_is_none() -> None:
    assert "- (0/0)" in report_of(Share(0, 0), Share(0, 0))

"""The figures of the report, and its form."""

import pytest

from api.safety.verdict import Category
from bench.safety.examples import HARMLESS
from bench.safety.measurement import LEVELS, Measured, Quality, Share
from bench.safety.report import WIDTH, report


def measured(share: Share) -> Measured:
    qualities = {(category, level): Quality(share, share, share) for category in Category for level in LEVELS}
    harmless = {(file, level): share for file in HARMLESS for level in LEVELS}
    return Measured(alone=qualities, embedded=qualities, harmless=harmless)


@pytest.mark.parametrize(
    ("share", "low", "high"), [(Share(0, 0), 0, 1), (Share(0, 10), 0, 0.278), (Share(5, 10), 0.237, 0.763)]
)
def test_interval_is_wilsons(share: Share, low: float, high: float) -> None:
    assert share.interval == pytest.approx((low, high), abs=1e-3)


def test_lines_are_as_long_as_those_of_the_docs() -> None:
    lines = report(measured(Share(9, 10)), [], [], "abc").splitlines()
    assert [line for line in lines if len(line) > WIDTH and not line.startswith("|")] == []


def test_categories_that_are_too_poor_to_block_on_are_named() -> None:
    poor = report(measured(Share(1, 10)), [], [], "abc")
    good = report(measured(Share(9, 10)), [], [], "abc")
    assert "on the held-out texts: none" in " ".join(poor.split())
    assert "a guard behind it: none" in " ".join(good.split())


def test_figure_without_texts_is_none() -> None:
    assert "- (0/0)" in report(measured(Share(0, 0)), [], [], "abc")

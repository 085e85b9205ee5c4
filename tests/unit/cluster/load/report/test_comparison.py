"""Two reports: what is better, and how sure that is."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.load.report.comparison import comparison_text, differences, ratios
from cluster.load.report.figures import LoadFigures
from tests.unit.cluster.load.report.records import record, refused, report, setup, summed


def run(ttft_s: float, seed: int = 0) -> LoadFigures:
    rng = random.Random(seed)
    return summed([record(number, ttft_s=ttft_s * rng.uniform(0.8, 1.2)) for number in range(200)])


def test_run_is_like_itself() -> None:
    one = run(0.5)
    for row in ratios(one, one):
        assert row.ratio is not None and row.ratio.value == 1.0
        assert row.verdict == "no difference that shows"


def test_half_the_ttft_is_better_and_the_goodput_is_the_same() -> None:
    rows = {row.name: row for row in ratios(run(0.5), run(0.25, seed=1))}
    ttft = rows["TTFT p50 ms"]
    assert ttft.ratio is not None and ttft.ratio.value == pytest.approx(0.5, rel=0.1) and ttft.verdict == "better"
    assert rows["good/s"].verdict == "no difference that shows"
    back = {row.name: row for row in ratios(run(0.25, seed=1), run(0.5))}
    assert back["TTFT p50 ms"].verdict == "worse"


@settings(max_examples=20)
@given(st.integers(0, 40), st.integers(0, 40))
def test_ratio_is_within_its_interval(one: int, other: int) -> None:
    first, second = (summed([record(n) if n < good else refused(n) for n in range(40)]) for good in (one, other))
    for row in ratios(first, second):
        assert row.ratio is None or row.ratio.low <= row.ratio.value <= row.ratio.high


def test_runs_without_any_answer_are_compared() -> None:
    nothing = summed([refused(n) for n in range(20)])
    text = comparison_text(report(run(0.5)), report(nothing), ("a", "b"))
    assert "good/s" in text and "TTFT" not in text


def test_what_was_not_the_same_is_told() -> None:
    one, other = report(run(0.5)), report(summed([record()], rate=2.0), setup=setup(seed=3, workload="mix tools"))
    lines = "\n".join(differences(one, other))
    assert "seed differs: 0 and 3" in lines and "workload differs" in lines and "rates differ: 1.0 and 2.0" in lines
    assert differences(one, one) == []

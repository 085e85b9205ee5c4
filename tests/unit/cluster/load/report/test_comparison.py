"""Two reports: what is better, and how sure that is."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.load.record import LoadEnding
from cluster.load.report.comparison import NO_DIFFERENCE, changes, comparison_text, differences, widening
from cluster.load.report.figures import LoadFigures
from tests.unit.cluster.load.report.records import record, refused, report, setup, summed, without_tokens


def run(ttft_s: float, seed: int = 0) -> LoadFigures:
    rng = random.Random(seed)
    return summed([record(number, ttft_s=ttft_s * rng.uniform(0.8, 1.2)) for number in range(200)])


def verdicts(first: LoadFigures, second: LoadFigures) -> dict[str, str]:
    return {row.name: row.verdict for row in changes(first, second)}


def test_run_is_like_itself() -> None:
    one = run(0.5)
    assert set(verdicts(one, one).values()) == {NO_DIFFERENCE}


def test_half_the_ttft_is_better_and_the_goodput_is_the_same() -> None:
    rows = {row.name: row for row in changes(run(0.5), run(0.25, seed=1))}
    ttft = rows["TTFT p50 ms"]
    assert ttft.change is not None and ttft.change.value == pytest.approx(0.5, rel=0.1) and ttft.verdict == "better"
    assert rows["good/s"].verdict == NO_DIFFERENCE
    assert verdicts(run(0.25, seed=1), run(0.5))["TTFT p50 ms"] == "worse"


def test_dropping_slow_requests_is_worse_and_makes_no_latency_better() -> None:
    slow = [record(number, ttft_s=5.0 if number % 10 < 3 else 0.5) for number in range(600)]
    dropped = [r if r.ttft_s == 0.5 else without_tokens(r.number, LoadEnding.TIMED_OUT) for r in slow]
    found = verdicts(summed(slow), summed(dropped))
    assert found["failed"] == "worse" and found["refused"] == NO_DIFFERENCE
    assert {found[f"TTFT {p} ms"] for p in ("p50", "p90", "p99")} == {"no verdict: 100.0% and 70.0% were answered"}
    assert verdicts(summed(dropped), summed(slow))["failed"] == "better"


def test_few_dropped_requests_leave_a_verdict_on_the_median_alone() -> None:
    whole = [record(number, ttft_s=0.5) for number in range(200)]
    fewer = [record(n, ttft_s=0.25) if n % 67 else refused(n) for n in range(200)]
    found = verdicts(summed(whole), summed(fewer))
    assert found["TTFT p50 ms"] == "better" and found["TTFT p99 ms"].startswith("no verdict")


def test_more_figures_widen_each_interval() -> None:
    assert widening(1) == 1.0 < widening(4) < widening(13)


def test_same_endpoint_seldom_differs_from_itself_in_any_figure() -> None:
    differing = 0
    for seed in range(20):
        found = verdicts(run(0.5, seed), run(0.5, 100 + seed))
        differing += set(found.values()) != {NO_DIFFERENCE}
    assert differing <= 2


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 40), st.integers(0, 40))
def test_change_is_within_its_interval(one: int, other: int) -> None:
    first, second = (summed([record(n) if n < good else refused(n) for n in range(40)]) for good in (one, other))
    for row in changes(first, second):
        assert row.change is None or row.change.low <= row.change.value <= row.change.upper


def test_runs_without_any_answer_are_compared() -> None:
    nothing = summed([refused(n) for n in range(20)])
    text = comparison_text(report(run(0.5)), report(nothing), ("a", "b"))
    assert "good/s" in text and "TTFT" not in text and "+100.0 points" in text


def test_what_was_not_the_same_is_told() -> None:
    one, other = report(run(0.5)), report(summed([record()], rate=2.0), setup=setup(seed=3, workload="mix tools"))
    lines = "\n".join(differences(one, other))
    assert "seed differs: 0 and 3" in lines and "workload differs" in lines and "rates differ: 1.0 and 2.0" in lines
    assert differences(one, one) == []

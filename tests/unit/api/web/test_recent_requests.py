"""Figures and lines of the latest requests are those of their receipts."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.web.recent_requests import (
    MOST_LINES,
    MOST_STAGES,
    PERCENTILES,
    WINDOW_S,
    EndedRequest,
    percentiles,
    recent_requests,
    request_line,
)
from cluster.messages.generation import PromptTokenSources
from cluster.messages.ids import Outcome, Path, SloClass, WorkerId
from cluster.messages.placement import Placement, Prediction, Rejection, Slo
from cluster.messages.timeline import TimelineStage
from cluster.slo import Result
from router.session.receipt import RouteReceipt
from tests.unit.factories import a_receipt

NOW = 1000.0
PREDICTED = Prediction(Path.PREFILL_DECODE, WorkerId("p0"), WorkerId("d0"), 0.4, 0.02, 0.1, 0.0, 0.2, 0.3)
PLACEMENT = Placement(
    path=Path.PREFILL_DECODE,
    prefill=WorkerId("p0"),
    decode=WorkerId("d0"),
    why="cheapest",
    slo=Slo(1.0, 0.05),
    predicted=PREDICTED,
)


def kept(*receipts: RouteReceipt, closed_at: float = NOW) -> list[EndedRequest]:
    return [EndedRequest(receipt, closed_at) for receipt in receipts]


def test_good_requests_of_each_class_are_counted() -> None:
    good = a_receipt("a", placement=PLACEMENT, slo_class=SloClass.INTERACTIVE)
    late = a_receipt("b", placement=PLACEMENT, slo_class=SloClass.INTERACTIVE, ttft_s=2.0)
    left = a_receipt("c", placement=PLACEMENT, slo_class=SloClass.INTERACTIVE, outcome=Outcome.ABORTED)
    refused = a_receipt(
        "d", outcome=Outcome.REJECTED, rejection=Rejection(retry_after_s=1.0, why="busy"), ttft_s=None, tpot_s=None
    )
    shown = recent_requests(kept(good, late, left, refused), 100, NOW)
    interactive, standard = shown.classes
    assert (interactive.num, interactive.num_good) == (2, 1)
    assert interactive.results == {Result.GOOD: 1, Result.TTFT_MISSED: 1}
    assert (standard.num, standard.num_good, standard.ttft_s) == (1, 0, [])
    assert shown.paths == {"P->D": 3, "none": 1}
    assert shown.good_per_s == 1 / WINDOW_S


def test_window_is_as_long_as_what_is_kept_of_it() -> None:
    """A replica that keeps three receipts knows nothing of what ended before them."""
    receipts = [EndedRequest(a_receipt(str(age), placement=PLACEMENT), NOW - age) for age in (1.0, 2.0, 4.0)]
    full, roomy = recent_requests(receipts, 3, NOW), recent_requests(receipts, 4, NOW)
    assert (full.covers_s, full.good_per_s) == (4.0, 0.75)
    assert (roomy.covers_s, roomy.good_per_s) == (WINDOW_S, 3 / WINDOW_S)


def test_old_receipts_have_a_line_and_no_part_in_the_figures() -> None:
    shown = recent_requests(kept(a_receipt("a", placement=PLACEMENT), closed_at=NOW - WINDOW_S - 1), 100, NOW)
    assert (shown.num, shown.classes, len(shown.last)) == (0, [], 1)


def test_nothing_is_kept() -> None:
    shown = recent_requests([], 0, NOW)
    assert (shown.num_kept, shown.num, shown.good_per_s, shown.last) == (0, 0, 0.0, [])


def test_line_has_what_was_predicted_and_what_came() -> None:
    receipt = a_receipt(
        "r",
        placement=PLACEMENT,
        sources=PromptTokenSources(1, 2, 3, 4),
        timeline=(TimelineStage("queue", 0.0, 0.1, "scheduler", {"why": "x"}), TimelineStage("send", 0.1, 0.2, "d0")),
    )
    line = request_line(EndedRequest(receipt, NOW))
    assert (line.path, line.worker, line.why) == (Path.PREFILL_DECODE, "d0", "cheapest")
    assert (line.ttft_s, line.predicted_ttft_s, line.slo_ttft_s) == (0.5, 0.4, 1.0)
    assert (line.tpot_s, line.predicted_tpot_s, line.slo_tpot_s) == (0.01, 0.02, 0.05)
    assert line.sources is not None
    assert msgspec.structs.asdict(line.sources) == {"computed": 1, "local": 2, "pulled": 3, "offloaded": 4}
    stage, send = line.stages
    assert (stage.is_measured, send.is_measured) == (True, False)
    assert (stage.name, stage.start_s, stage.end_s, stage.place) == ("queue", 0.0, 0.1, "scheduler")


def test_lines_and_stages_are_bounded() -> None:
    stages = tuple(TimelineStage("prefill", float(n), n + 1.0, "p0") for n in range(200))
    shown = recent_requests(kept(*(a_receipt(str(n), timeline=stages) for n in range(100))), 100, NOW)
    assert len(shown.last) == MOST_LINES
    assert {len(line.stages) for line in shown.last} == {MOST_STAGES}


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_percentiles_are_values_that_enough_others_do_not_exceed(values: list[float]) -> None:
    found = percentiles(values)
    assert found == sorted(found)
    for share, value in zip(PERCENTILES, found, strict=True):
        assert value in values
        assert sum(one <= value for one in values) >= len(values) * share / 100


@pytest.mark.parametrize("count", [1, 2, 100, 101])
def test_median_of_a_count(count: int) -> None:
    assert percentiles([float(n) for n in range(1, count + 1)])[0] == (count + 1) // 2

from typing import Any

import pytest
from prometheus_client import REGISTRY

from api.server.receipt_log import ReceiptLog
from cluster.messages.generation import PromptTokenSources
from cluster.messages.ids import Outcome, Path, SloClass, WorkerId
from cluster.messages.placement import Placement, Prediction, Rejection, Slo
from cluster.messages.timeline import TimelineStage
from cluster.metrics.buckets import GAP_BUCKETS_S
from router.session.receipt import RouteReceipt, TokenGaps
from tests.unit.factories import a_receipt

PREDICTED = Prediction(Path.DECODE, None, WorkerId("d0"), 0.5, 0.02, 0.1, 0.0, 0.2, 0.3)
PLACED = Placement(
    path=Path.DECODE, prefill=None, decode=WorkerId("d0"), why="", slo=Slo(1.0, 0.05), predicted=PREDICTED
)


def counted(name: str, receipt: RouteReceipt, **labels: str) -> float:
    """How much a receipt adds to a metric."""
    before = REGISTRY.get_sample_value(name, labels) or 0.0
    ReceiptLog(0).closed(receipt)
    return (REGISTRY.get_sample_value(name, labels) or 0.0) - before


@pytest.mark.parametrize(
    ("fields", "path", "result"),
    [
        ({"ttft_s": 0.5, "tpot_s": 0.01}, "D", "good"),
        ({"ttft_s": 1.5, "tpot_s": 0.01}, "D", "ttft_missed"),
        ({"outcome": Outcome.REJECTED, "placement": None}, "none", "rejected"),
        ({"outcome": Outcome.FAILED}, "D", "failed"),
    ],
    ids=str,
)
def test_request_counts_for_goodput_by_class_path_and_result(fields: dict[str, Any], path: str, result: str) -> None:
    defaults: dict[str, Any] = {"placement": PLACED, "slo_class": SloClass.BATCH}
    receipt = a_receipt(**(defaults | fields))
    assert counted("baton_goodput_requests_total", receipt, slo_class="batch", path=path, result=result) == 1


def test_part_of_the_ttft_that_nothing_has_measured_is_counted_by_its_part() -> None:
    stages = (
        TimelineStage("send", 0.1, 0.2, "d0"),
        TimelineStage("prefill", 0.2, 0.4, "d0"),
        TimelineStage("wait", 0.4, 0.45, "d0"),
        TimelineStage("network", 0.45, 0.5, "d0"),
        TimelineStage("wait", 0.5, 0.9, "d0"),
    )
    receipt = a_receipt(placement=PLACED, ttft_s=0.5, timeline=stages)
    for part, seconds, number in (("way", 0.15, 1), ("wait", 0.05, 1), ("worker", 0.0, 0)):
        name = "baton_time_to_first_token_unmeasured_seconds"
        assert counted(f"{name}_sum", receipt, path="D", part=part) == pytest.approx(seconds)
        assert counted(f"{name}_count", receipt, path="D", part=part) == number
    left = a_receipt(placement=PLACED, ttft_s=None, timeline=stages)
    assert counted(f"{name}_count", left, path="D", part="way") == 0


def test_request_that_its_client_ended_is_nothing_to_goodput() -> None:
    receipt = a_receipt(placement=PLACED, outcome=Outcome.ABORTED)
    before = _total("baton_goodput_requests_total")
    ReceiptLog(0).closed(receipt)
    assert _total("baton_goodput_requests_total") == before


def test_client_that_left_before_its_late_first_token_counts_with_the_time_that_it_had_waited() -> None:
    left: dict[str, Any] = {"outcome": Outcome.ABORTED, "ttft_s": None, "tpot_s": None, "slo_class": SloClass.BATCH}
    placed, never_placed = {"placement": PLACED}, {"unplaced_slo": Slo(1.0, 0.05)}
    for where, path in ((placed, "D"), (never_placed, "none")):
        labels = {"slo_class": "batch", "path": path}
        late, in_time = (a_receipt(**(left | where), duration_s=waited_s) for waited_s in (30.0, 0.9))
        assert counted("baton_goodput_requests_total", late, result="ttft_missed", **labels) == 1
        assert counted("baton_time_to_first_token_seconds_sum", late, **labels) == pytest.approx(30.0)
        assert counted("baton_goodput_requests_total", in_time, result="ttft_missed", **labels) == 0
        assert counted("baton_time_to_first_token_seconds_count", in_time, **labels) == 0


def test_prediction_is_compared_with_what_came() -> None:
    receipt = a_receipt(placement=PLACED, ttft_s=0.6, tpot_s=0.01)
    assert counted("baton_prediction_ratio_sum", receipt, path="D", of="ttft") == pytest.approx(1.2)
    assert counted("baton_prediction_ratio_sum", receipt, path="D", of="tpot") == pytest.approx(0.5)


@pytest.mark.parametrize("fields", [{"num_attempts": 2}, {"ttft_s": None, "tpot_s": None}], ids=str)
def test_prediction_of_another_placement_or_without_a_token_is_compared_with_nothing(fields: dict[str, Any]) -> None:
    receipt = a_receipt(**({"placement": PLACED} | fields))
    assert counted("baton_prediction_ratio_count", receipt, path="D", of="ttft") == 0


def test_prompt_tokens_are_counted_per_request_by_role_and_source() -> None:
    receipt = a_receipt(prefill_sources=PromptTokenSources(5, 3, 0, 2), sources=PromptTokenSources(1, 0, 9))
    name = "baton_request_prompt_tokens_total"
    assert counted(name, receipt, role="prefill", source="computed") == 5
    assert counted(name, receipt, role="prefill", source="offloaded") == 2
    assert counted(name, receipt, role="decode", source="pulled") == 9


def test_times_are_observed_by_path_and_class() -> None:
    counts = (1, 0, 4, *[0] * (len(GAP_BUCKETS_S) - 2))
    receipt = a_receipt(
        placement=PLACED, slo_class=SloClass.BATCH, gaps=TokenGaps(counts, 0.05), queued_s=0.2, duration_s=1.5
    )
    of_both = {"path": "D", "slo_class": "batch"}
    assert counted("baton_time_to_first_token_seconds_count", receipt, **of_both) == 1
    assert counted("baton_request_time_per_output_token_seconds_count", receipt, **of_both) == 1
    assert counted("baton_inter_token_latency_seconds_count", receipt, **of_both) == 5
    assert counted("baton_inter_token_latency_seconds_bucket", receipt, le="0.005", **of_both) == 1
    assert counted("baton_inter_token_latency_seconds_sum", receipt, **of_both) == pytest.approx(0.05)
    assert counted("baton_request_seconds_sum", receipt, **of_both) == 1.5
    assert counted("baton_request_queue_seconds_sum", receipt, slo_class="batch") == pytest.approx(0.2)
    assert counted("baton_requests_total", receipt, outcome="finished", **of_both) == 1


def test_request_that_was_refused_has_no_time_to_its_end() -> None:
    receipt = a_receipt(outcome=Outcome.REJECTED, duration_s=1.5)
    assert counted("baton_request_seconds_count", receipt, path="none", slo_class="standard") == 0


def a_rejection(**fields: Any) -> Rejection:
    return Rejection(retry_after_s=1.0, why="a test wants it", **fields)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"outcome": Outcome.REJECTED, "rejection": a_rejection(is_overload=True)}, "overload"),
        ({"outcome": Outcome.REJECTED, "rejection": a_rejection()}, "no_worker"),
        ({"outcome": Outcome.FAILED, "rejection": a_rejection(is_quarantined=True)}, "quarantined"),
        ({"outcome": Outcome.REJECTED, "placement": PLACED}, "no_token"),
        ({"outcome": Outcome.FAILED, "rejection": a_rejection()}, None),
        ({}, None),
    ],
    ids=str,
)
def test_refusals_are_counted_by_class_and_reason(fields: dict[str, Any], reason: str | None) -> None:
    before = _total("baton_rejections_total")
    receipt = a_receipt(slo_class=SloClass.INTERACTIVE, **fields)
    if reason is not None:
        assert counted("baton_rejections_total", receipt, slo_class="interactive", reason=reason) == 1
    else:
        ReceiptLog(0).closed(receipt)
    assert _total("baton_rejections_total") == before + (reason is not None)


def test_last_receipts_are_kept() -> None:
    receipts = ReceiptLog(2)
    for number in range(3):
        receipts.closed(a_receipt(f"r{number}"))
    assert [receipt.request_id for receipt in receipts.kept.last(5)] == ["r2", "r1"]
    assert receipts.kept.last(0) == []


def _total(name: str) -> float:
    return sum(s.value for metric in REGISTRY.collect() for s in metric.samples if s.name == name)

from cluster.messages.placement import Rejection
from cluster.messages.timeline import TimelineStage
from router.session.waterfall import waterfall_of
from tests.unit.api.server.test_kept_receipts import ATTEMPT, PLACED
from tests.unit.factories import a_receipt

PREPARE = TimelineStage("prepare", 0.0, 0.1, "ingress", {"prompt_tokens": 4})


def test_every_stage_is_a_row_in_the_order_of_time() -> None:
    receipt = a_receipt(placement=PLACED, attempts=(ATTEMPT,), timeline=(PREPARE,), http_request="req_1")
    waterfall = waterfall_of(receipt)
    assert [(row.name, row.attempt, row.start_ms, row.end_ms) for row in waterfall.rows] == [
        ("prepare", 0, 0.0, 100.0),
        ("prefill", 1, 100.0, 500.0),
        ("decode", 1, 500.0, 2000.0),
    ]
    assert [row.is_before_first_token for row in waterfall.rows] == [True, True, False]
    assert waterfall.rows[1].notes == {"tokens": 4}


def test_stage_that_nothing_has_measured_says_so_and_is_counted() -> None:
    send, wait = TimelineStage("send", 0.1, 0.2, "d0"), TimelineStage("wait", 0.45, 0.9, "d0")
    waterfall = waterfall_of(a_receipt(ttft_s=0.5, timeline=(PREPARE, send, wait)))
    assert [(row.name, row.is_measured) for row in waterfall.rows] == [
        ("prepare", True),
        ("send", False),
        ("wait", False),
    ]
    assert waterfall.unmeasured_ttft_ms == 150.0
    assert waterfall_of(a_receipt(ttft_s=None, timeline=(send,))).unmeasured_ttft_ms is None


def test_what_came_stands_beside_what_was_expected() -> None:
    waterfall = waterfall_of(a_receipt(placement=PLACED, sources=ATTEMPT.sources))
    assert (waterfall.ttft_ms, waterfall.predicted_ttft_ms, waterfall.target_ttft_ms) == (500.0, 400.0, 1000.0)
    assert (waterfall.tpot_ms, waterfall.predicted_tpot_ms, waterfall.target_tpot_ms) == (10.0, 20.0, 50.0)
    assert (waterfall.path, waterfall.why) == ("D", "least cost")
    assert waterfall.sources == {"generating": {"computed": 1, "local": 3, "pulled": 0, "offloaded": 0}}


def test_refused_request_says_why() -> None:
    refused = Rejection(retry_after_s=2.0, why="all workers are busy")
    waterfall = waterfall_of(a_receipt(ttft_s=None, tpot_s=None, rejection=refused, timeline=(PREPARE,)))
    assert (waterfall.path, waterfall.why, waterfall.predicted_ttft_ms) == (None, "all workers are busy", None)
    assert [row.is_before_first_token for row in waterfall.rows] == [True]

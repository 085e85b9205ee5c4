"""What a collector gets of the requests of an ingress replica, and what becomes of them while it is away."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import REGISTRY

from api.server.receipt_log import ReceiptLog
from api.tracing import trace_exporter
from api.tracing.trace_exporter import TraceExporter
from cluster.config.observability.tracing import KeptTraces, TracingConfig
from cluster.messages.ids import Outcome
from cluster.messages.timeline import TimelineStage
from cluster.observability.trace_context import context_of
from cluster.slo import SloConfig
from router.session.receipt import RouteReceipt
from tests.component.api.tracing.collector import Collector, attributes_of, collecting
from tests.unit.api.server.test_kept_receipts import ATTEMPT, PLACED
from tests.unit.factories import a_receipt

PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ALL = KeptTraces(share=1.0)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_exporter, "BATCH_S", 0.01)
    monkeypatch.setattr(trace_exporter, "RETRY_S", 0.01)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as started:
        yield started


def an_exporter(collector: Collector, **fields: Any) -> TraceExporter:
    defaults: dict[str, Any] = {"endpoint": collector.endpoint, "keep": ALL}
    config = TracingConfig(**(defaults | fields))
    return TraceExporter(config, SloConfig(), "baton-demo", "replica-1")


def a_traced(name: str = "r", **fields: object) -> RouteReceipt:
    defaults: dict[str, object] = {
        "placement": PLACED,
        "attempts": (ATTEMPT,),
        "timeline": (TimelineStage("prepare", 0.0, 0.1, "ingress"),),
        "http_request": f"req-{name}",
        "trace": context_of(PARENT, b"vendor=1", name, "nonce"),
        "duration_s": 2.0,
        "sources": ATTEMPT.sources,
    }
    return a_receipt(name, **(defaults | fields))


def counted(result: str) -> float:
    return REGISTRY.get_sample_value("baton_traces_total", {"result": result}) or 0.0


def test_spans_of_a_request_are_its_timeline(collector: Collector) -> None:
    exporter = an_exporter(collector)
    receipt = a_traced()
    ReceiptLog(0, exporter).closed(receipt)
    root, prepare, attempt, prefill, decode = collector.spans(5)
    exporter.close(5)
    assert [span.name for span in (prepare, attempt, prefill, decode)] == ["prepare", "attempt 1", "prefill", "decode"]
    assert {span.trace_id.hex() for span in (root, prepare, decode)} == {"0af7651916cd43dd8448eb211c80319c"}
    assert (root.parent_span_id.hex(), root.trace_state) == ("b7ad6b7169203331", "vendor=1")
    assert receipt.trace is not None and root.span_id.hex() == receipt.trace.span_id
    assert prepare.parent_span_id == attempt.parent_span_id == root.span_id
    assert prefill.parent_span_id == decode.parent_span_id == attempt.span_id
    assert len({span.span_id for span in (root, prepare, attempt, prefill, decode)}) == 5
    began = root.start_time_unix_nano
    assert root.end_time_unix_nano - began == 2_000_000_000
    assert (prefill.start_time_unix_nano - began, prefill.end_time_unix_nano - began) == (100_000_000, 500_000_000)
    assert root.events[0].time_unix_nano - began == 500_000_000
    of_request = attributes_of(root)
    assert (of_request["gen_ai.usage.input_tokens"], of_request["gen_ai.usage.output_tokens"]) == (4, 3)
    assert (of_request["gen_ai.usage.cache_read.input_tokens"], of_request["gen_ai.request.model"]) == (3, "baton-demo")
    assert (of_request["baton.http_request"], of_request["baton.predicted.ttft_s"]) == ("req-r", 0.4)
    assert (attributes_of(prefill)["baton.place"], attributes_of(prefill)["baton.tokens"]) == ("d0", 4)
    resource = attributes_of(list(collector.exports[0].resource_spans[0].resource.attributes))
    assert (resource["service.name"], resource["service.instance.id"]) == ("baton", "replica-1")


def test_stage_that_nothing_has_measured_says_so(collector: Collector) -> None:
    exporter = an_exporter(collector)
    exporter.closed(
        a_traced(timeline=(TimelineStage("send", 0.0, 0.1, "d0"), TimelineStage("receive", 0.1, 0.2, "d0")))
    )
    spans = {span.name: attributes_of(span) for span in collector.spans(3)}
    exporter.close(5)
    assert spans["send"]["baton.is_measured"] is False
    assert "baton.is_measured" not in spans["receive"]


def test_failed_request_is_an_error(collector: Collector) -> None:
    exporter = an_exporter(collector, keep=KeptTraces(share=0.0))
    exporter.closed(a_traced(outcome=Outcome.FAILED, error="worker_failed"))
    root, *_ = collector.spans(1)
    exporter.close(5)
    assert (root.status.code, root.status.message) == (root.status.STATUS_CODE_ERROR, "worker_failed")
    assert attributes_of(root)["error.type"] == "worker_failed"
    assert attributes_of(root)["baton.kept_because"] == "failed"


def test_secrets_come_from_the_environment(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"authorization": "COLLECTOR_TOKEN"}
    with pytest.raises(ValueError, match="COLLECTOR_TOKEN is not set"):
        an_exporter(collector, header_variables=variables)
    monkeypatch.setenv("COLLECTOR_TOKEN", "Bearer s3cret")
    exporter = an_exporter(collector, headers={"x-scope": "a"}, header_variables=variables, resource={"zone": "z1"})
    exporter.closed(a_traced())
    collector.spans(1)
    exporter.close(5)
    (headers,) = collector.headers
    assert (headers["authorization"], headers["x-scope"]) == ("Bearer s3cret", "a")
    assert headers["content-type"] == "application/x-protobuf"
    assert collector.paths == ["/v1/traces"]
    assert attributes_of(list(collector.exports[0].resource_spans[0].resource.attributes))["zone"] == "z1"
    monkeypatch.setenv("COLLECTOR_TOKEN", "two\nlines")
    with pytest.raises(ValueError, match="characters that a header cannot have"):
        an_exporter(collector, header_variables=variables)


def test_collector_that_is_away_for_a_while_gets_everything_later(collector: Collector) -> None:
    collector.statuses = [503, 429]
    before = counted("exported")
    exporter = an_exporter(collector)
    exporter.closed(a_traced())
    collector.spans(1)
    exporter.close(5)
    assert counted("exported") == before + 1


@pytest.mark.parametrize("status", [400, 307, 500])
def test_what_a_collector_refuses_is_dropped_and_never_sent_elsewhere(
    collector: Collector, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    collector.statuses = [status, status]
    before = counted("refused")
    exporter = an_exporter(collector)
    with caplog.at_level(logging.WARNING, "baton.tracing"):
        for number in range(2):
            exporter.closed(a_traced(f"r{number}"))
            collector.tries(number + 1)
        exporter.close(5)
    assert counted("refused") == before + 2
    assert len(caplog.records) == 1, "the collector's failures are logged seldom"


def test_no_request_waits_for_a_collector_that_hangs(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_exporter, "MOST_WAITING", 10)
    collector.answers.clear()
    before = counted("queue_full")
    exporter = an_exporter(collector)
    for number in range(200):
        exporter.closed(a_traced(f"r{number}"))
    assert 200 - 10 - trace_exporter.BATCH_TRACES <= counted("queue_full") - before <= 200 - 10
    collector.answers.set()
    exporter.close(5)


def test_collector_that_is_not_there_costs_traces_alone(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_exporter, "BATCH_TRACES", 1)
    before = counted("undelivered")
    exporter = TraceExporter(TracingConfig(endpoint="http://127.0.0.1:1", keep=ALL), SloConfig(), "m", "i")
    for number in range(2):
        exporter.closed(a_traced(f"r{number}"))
    exporter.close(10)
    assert counted("undelivered") == before + 2
    assert sum("traces are dropped until" in record.message for record in caplog.records) == 1


def test_request_of_many_attempts_has_a_bounded_trace(collector: Collector) -> None:
    exporter = an_exporter(collector)
    exporter.closed(a_traced(attempts=(ATTEMPT,) * 500))
    spans = collector.spans(1)
    exporter.close(5)
    assert len(spans) == 256
    assert attributes_of(spans[0])["baton.spans_left_out"] == 1 + 3 * 500 - 255

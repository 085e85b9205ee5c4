"""TraceExporter: sends the traces of requests that are worth it to an OpenTelemetry collector, by OTLP over HTTP.

A request costs the event loop the choice and an entry in a queue. A thread makes the spans, and sends them in batches.
The queue is bounded: while the collector is away or slow, traces are dropped and counted, and no request waits.
"""

import logging
import os
import secrets
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Mapping
from http.client import HTTPException
from typing import NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from api.tracing.spans import SpanMaker, export_of
from api.tracing.tail_sampling import TailSampler
from cluster.config.observability.tracing import TracingConfig
from cluster.http_answer import answer_of
from cluster.metrics.tracing import TRACES
from cluster.observability.trace_context import TraceContext
from cluster.slo import SloConfig
from router.session.receipt import RouteReceipt

logger = logging.getLogger("baton.tracing")

MOST_WAITING = 2048
"""Traces that wait for their export. More takes memory while the collector is away (about 5 kB each); fewer drops
traces of a burst.
"""
BATCH_TRACES = 64
"""Traces of one export, some 20 spans each. More makes larger messages, and loses more with one; fewer sends more of
them.
"""
BATCH_S = 1.0
"""Time in which the traces of an export are collected, in seconds. Longer shows a trace later; shorter sends more
messages.
"""
EXPORT_TIMEOUT_S = 5.0
"""Time for one export with its whole answer, in seconds. Longer waits for a collector that hangs while traces are
dropped; shorter gives up a slow one.
"""
RETRY_S, MAX_RETRY_S = 1.0, 16.0
"""Time between two tries of an export, in seconds: doubled after each failure, up to the second number. Longer sends
later to a collector that is back; shorter asks one that is away more often.
"""
TRIES = 5
"""Times that an export is tried before it is dropped. More holds up later traces; fewer loses traces when a collector
restarts.
"""
LOG_INTERVAL_S = 60.0
"""Least time between two log lines about a collector that fails, in seconds. Longer says less; shorter fills the log.
"""
MAX_ANSWER_BYTES = 1 << 16
"""Bytes of a collector's answer that are read. More reads more of what is no collector; fewer misses what it has
refused.
"""
RETRIED = frozenset({429, 502, 503, 504})
"""Statuses after which an export is tried again, by OTLP."""


class _Chosen(NamedTuple):
    receipt: RouteReceipt
    trace: TraceContext
    ended_at: float
    why: str


class TraceExporter:
    def __init__(self, config: TracingConfig, slo: SloConfig, model: str, instance: str) -> None:
        """`model`: its served name. `instance`: the name of this replica.

        Raises ValueError if a variable of `header_variables` is not set.
        """
        self._url = f"{(config.endpoint or '').rstrip('/')}/v1/traces"
        self._headers = {**config.headers, **_secrets(config.header_variables)}
        self._headers["Content-Type"] = "application/x-protobuf"
        self._resource = {"service.name": "baton", "service.instance.id": instance, **config.resource}
        self._model = model
        self._sampler = TailSampler(config.keep, slo, secrets.token_bytes(16))
        self._waiting: deque[_Chosen] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        self._logged_at = float("-inf")
        self._has_given_up = False
        """An export was dropped since the last one that the collector has taken."""
        self._thread = threading.Thread(target=self._run, name="trace-export", daemon=True)
        self._thread.start()

    def closed(self, receipt: RouteReceipt) -> None:
        """A request has ended. Called on the event loop."""
        if receipt.trace is None or (why := self._sampler.why_kept(receipt, time.monotonic())) is None:
            return
        with self._changed:
            if len(self._waiting) >= MOST_WAITING or self._is_closing:
                TRACES.labels("queue_full").inc()
                return
            self._waiting.append(_Chosen(receipt, receipt.trace, time.time(), why))
            if len(self._waiting) in (1, BATCH_TRACES):
                self._changed.notify()

    @property
    def num_waiting(self) -> int:
        """Traces that wait for their export."""
        return len(self._waiting)

    def close(self, patience_s: float) -> None:
        """Export what waits, for a while at most. Blocks."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(patience_s)

    def _run(self) -> None:
        while (batch := self._batch()) is not None:
            try:
                self._export(batch)
            except Exception:  # a defect: the thread must go on
                TRACES.labels("refused").inc(len(batch))
                logger.exception("%d traces could not be made", len(batch))

    def _batch(self) -> list[_Chosen] | None:
        """The traces of the next export. None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closing)
            self._changed.wait_for(lambda: len(self._waiting) >= BATCH_TRACES or self._is_closing, BATCH_S)
            if not self._waiting:
                return None
            return [self._waiting.popleft() for _ in range(min(BATCH_TRACES, len(self._waiting)))]

    def _export(self, batch: list[_Chosen]) -> None:
        spans = [
            span
            for chosen in batch
            for span in SpanMaker(chosen.receipt, chosen.trace, chosen.ended_at, self._model).spans(chosen.why)
        ]
        body = export_of(spans, self._resource).SerializeToString()
        TRACES.labels(self._delivered(body)).inc(len(batch))

    def _delivered(self, body: bytes) -> str:
        """What became of an export, which is tried again if the collector is away."""
        pause_s = RETRY_S
        for number in range(1, TRIES + 1):
            result, wrong = self._post(body)
            if wrong:
                self._complain(wrong)
            if result is not None:
                self._has_given_up = False
                return result
            with self._changed:
                if number == TRIES or self._changed.wait_for(lambda: self._is_closing, pause_s):
                    break
            pause_s = min(2 * pause_s, MAX_RETRY_S)
        if not self._has_given_up:
            self._has_given_up = True
            logger.warning("traces are dropped until the collector at %s takes them", self._url)
        return "undelivered"

    def _post(self, body: bytes) -> tuple[str | None, str]:
        """What became of an export, and what is wrong. No result if another try may succeed."""
        request = urllib.request.Request(self._url, body, self._headers, method="POST")
        try:
            answer = answer_of(request, EXPORT_TIMEOUT_S, MAX_ANSWER_BYTES, _NoRedirects())
        except urllib.error.HTTPError as error:
            error.close()
            return None if error.code in RETRIED else "refused", f"it answers {error.code}"
        except (OSError, HTTPException, ValueError) as error:
            return None, repr(getattr(error, "reason", error))
        try:
            refused = ExportTraceServiceResponse.FromString(answer).partial_success.rejected_spans
        except Exception:  # protobuf's own error: collectors may answer in JSON, and have taken the spans
            refused = 0
        return "exported", f"it has refused {refused} spans" if refused else ""

    def _complain(self, wrong: str) -> None:
        now = time.monotonic()
        if now - self._logged_at >= LOG_INTERVAL_S:
            self._logged_at = now
            logger.warning("the collector of traces at %s fails: %s", self._url, wrong)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """The headers may have secrets: they go nowhere else."""

    def redirect_request(self, *of_urllib: object) -> None:
        return None


def _secrets(variables: Mapping[str, str]) -> dict[str, str]:
    """Raises ValueError."""
    missing = [variable for variable in variables.values() if not os.environ.get(variable)]
    if missing:
        raise ValueError(f"tracing.header_variables: {missing[0]} is not set in the environment of the ingress")
    values = {name: os.environ[variable] for name, variable in variables.items()}
    for name, value in values.items():
        if not (value.isascii() and value.isprintable()):
            raise ValueError(f"tracing.header_variables: {variables[name]} has characters that a header cannot have")
    return values

"""A collector of traces: an HTTP server that keeps the spans that it is sent."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    def __init__(self) -> None:
        self.exports: list[ExportTraceServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.statuses: list[int] = []
        """Its next answers. 200 if none is left."""
        self.changed = threading.Condition()
        self.answers = threading.Event()
        """It hangs until this is set."""
        self.answers.set()
        self.endpoint = ""

    def spans(self, number: int, timeout_s: float = 20.0) -> list[Span]:
        """The spans that have come, once there are as many."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self._spans) >= number, timeout_s), len(self._spans)
            return self._spans

    def tries(self, number: int, timeout_s: float = 20.0) -> None:
        """Return when it was asked so many times."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.paths) >= number, timeout_s), self.paths

    @property
    def _spans(self) -> list[Span]:
        return [
            span
            for export in self.exports
            for resource in export.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Taking(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.answers.wait(30)
            with collector.changed:
                status = collector.statuses.pop(0) if collector.statuses else 200
                collector.paths.append(self.path)
                collector.headers.append({name.lower(): value for name, value in self.headers.items()})
                if status == 200:
                    collector.exports.append(ExportTraceServiceRequest.FromString(body))
                collector.changed.notify_all()
            self.send_response(status)
            if status == 307:
                self.send_header("Location", "http://127.0.0.1:1/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Taking) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        collector.endpoint = f"http://127.0.0.1:{http.server_port}"
        try:
            yield collector
        finally:
            collector.answers.set()
            http.shutdown()
            thread.join()


def attributes_of(holder: "Span | list[KeyValue]") -> dict[str, object]:
    """By name."""
    attributes = holder if isinstance(holder, list) else holder.attributes
    return {one.key: getattr(one.value, str(one.value.WhichOneof("value"))) for one in attributes}

"""What timelines, kept receipts and exported traces cost an ingress replica, per request and per token.

    make bench-tracing

Sessions in one process over ports that answer at once: path P->D, with the stages that workers measure. Four settings
take turns in each round: nothing is kept; receipts are kept; and beside that 1 % of all requests, or all of them, are
exported to a collector in a process of its own. CPU time of the process with all its threads, so the thread that
exports counts. What a token costs is the difference between long and short answers.
"""

import argparse
import asyncio
import gc
import multiprocessing
from collections.abc import AsyncGenerator, Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from multiprocessing.connection import Connection
from statistics import median
from time import process_time

from api.server.receipt_log import ReceiptLog
from api.tracing.trace_exporter import TraceExporter
from cluster.config.observability.tracing import KeptTraces, TracingConfig
from cluster.messages.generation import FinishReason, GenerateRequest, PromptTokenSources, TokenDelta
from cluster.messages.ids import Path, RequestId, WorkerId
from cluster.messages.placement import Placement, PlacementRequest, Prediction, Slo
from cluster.messages.retention import ToolWait
from cluster.messages.scheduler_events import SchedulerEvent
from cluster.messages.timeline import TimelineStage
from cluster.observability.trace_context import context_of
from cluster.slo import SloConfig
from kvtransfer.handoff import KVHandoff, PrefillResult, PulledBlocks
from router.session.ports import SessionPorts
from router.session.receipt import Terms
from router.session.session import Session

ROUNDS, SESSIONS = 15, 200
SHORT, LONG = 16, 256
"""Tokens of an answer."""
P, D = WorkerId("prefill-0"), WorkerId("decode-0")
PREDICTED = Prediction(Path.PREFILL_DECODE, P, D, 0.1, 0.02, 0.1, 0.0, 0.1, 0.2)
PLACED = Placement(
    path=Path.PREFILL_DECODE,
    prefill=P,
    decode=D,
    why="least cost",
    slo=Slo(10.0, 1.0),
    predicted=PREDICTED,
    considered=(PREDICTED, PREDICTED, PREDICTED),
)
HANDOFF = KVHandoff(worker=P, params={"remote_request_id": "lease", "remote_num_tokens": 500})
NOTES: dict[str, int | float | str] = {"tokens": 500, "batch_requests": 3, "batch_tokens": 502}
OF_PREFILL = (
    TimelineStage("receive", 0.0, 1e-5),
    TimelineStage("prefill", 2e-5, 4e-5, notes=NOTES),
    TimelineStage("output", 4e-5, 5e-5),
)
OF_DECODE = (
    TimelineStage("promise", 0.0, 1e-5),
    TimelineStage("receive", 1e-5, 2e-5),
    TimelineStage("first_decode", 6e-5, 7e-5, notes=NOTES),
    TimelineStage("output", 7e-5, 8e-5),
    TimelineStage("pull_post", 2e-5, 3e-5),
    TimelineStage("pull_transfer", 3e-5, 4e-5, notes={"bytes": 1 << 20, "gb_per_s": 1.0}),
    TimelineStage("pull_notice", 4e-5, 5e-5),
)


class Cluster:
    """Every port of a session, which answers at once."""

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens

    async def place(self, request: PlacementRequest) -> Placement:
        return PLACED

    def when_to_pause(self, request_id: RequestId, pause: Callable[[int], None]) -> None:
        """Nothing is paused."""

    def tell(self, event: SchedulerEvent) -> None:
        """Nobody is told."""

    async def prefill(self, worker: WorkerId, request: GenerateRequest) -> PrefillResult:
        first = TokenDelta(0, [1], prompt_sources=PromptTokenSources(500, 0, 0), stages=OF_PREFILL)
        return PrefillResult(handoff=HANDOFF, first=first)

    def withdraw(self, worker: WorkerId, request_id: RequestId) -> None:
        """Nothing is kept."""

    async def generate(
        self, worker: WorkerId, request: GenerateRequest, handoff: KVHandoff | None
    ) -> AsyncGenerator[TokenDelta, None]:
        yield TokenDelta(0, [1], prompt_sources=PromptTokenSources(0, 0, 500), stages=OF_DECODE)
        for _ in range(self._num_tokens - 2):
            yield TokenDelta(0, [1])
        yield TokenDelta(0, [1], FinishReason.LENGTH, num_steps=self._num_tokens - 1)

    def pause(self, worker: WorkerId, request_id: RequestId) -> None:
        """Nothing is paused."""

    def forget(self, worker: WorkerId, blocks: PulledBlocks | None) -> None:
        """Nothing is cached."""

    def await_tools(self, worker: WorkerId, wait: ToolWait) -> None:
        """Nothing is cached."""


def collect(told: Connection) -> None:
    """A collector that takes everything, in a process of its own."""

    class Taking(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Taking) as http:
        told.send(http.server_port)
        http.serve_forever()


async def served(log: ReceiptLog, num_tokens: int) -> float:
    """CPU seconds of a request."""
    cluster = Cluster(num_tokens)
    ports = SessionPorts(scheduler=cluster, prefill=cluster, decode=cluster, observer=log)
    began = process_time()
    for number in range(SESSIONS):
        request = GenerateRequest(request_id=RequestId(f"r{number}"), prompt_token_ids=[1] * 500, sampling_params=b"")
        trace = context_of(None, None, f"r{number}", f"{number}") if log.is_traced else None
        session = Session(request, ports, Terms(trace=trace, http_request="req_1"), first_token_timeout_s=60.0)
        async for _ in session.run():
            pass
    return (process_time() - began) / SESSIONS


async def costs(endpoint: str) -> dict[str, tuple[float, float]]:
    """CPU seconds of a request of SHORT tokens, and of a further token, by setting."""

    def exporter(share: float) -> TraceExporter:
        return TraceExporter(TracingConfig(endpoint=endpoint, keep=KeptTraces(share=share)), SloConfig(), "m", "bench")

    exporters = {"1 % exported": exporter(0.01), "all exported": exporter(1.0)}
    logs = {"nothing kept": ReceiptLog(0), "receipts kept": ReceiptLog(2000)}
    logs |= {name: ReceiptLog(2000, one) for name, one in exporters.items()}
    seconds: dict[tuple[str, int], list[float]] = {}
    gc.collect()
    gc.freeze()
    for number in range(ROUNDS + 1):
        for name, log in logs.items():
            for num_tokens in (SHORT, LONG):
                took_s = await served(log, num_tokens)
                began = process_time()
                if name in exporters:  # what waits is made and sent before the next setting has its turn
                    while exporters[name].num_waiting:  # noqa: ASYNC110  # the exporter tells nobody
                        await asyncio.sleep(0.25)
                took_s += (process_time() - began) / SESSIONS
                if number:  # the first round warms up
                    seconds.setdefault((name, num_tokens), []).append(took_s)
    for one in exporters.values():
        one.close(5.0)
    found = {key: median(taken) for key, taken in seconds.items()}
    return {name: (found[name, SHORT], (found[name, LONG] - found[name, SHORT]) / (LONG - SHORT)) for name in logs}


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    here, there = multiprocessing.Pipe()
    collector = multiprocessing.get_context("spawn").Process(target=collect, args=(there,), daemon=True)
    collector.start()
    found = asyncio.run(costs(f"http://127.0.0.1:{here.recv()}"))
    collector.kill()
    least, _ = found["nothing kept"]
    print(f"CPU of a session, the median of {ROUNDS} rounds of {SESSIONS} for each setting")
    for name, (request_s, token_s) in found.items():
        print(f"{name:14} {request_s * 1e6:7.1f} us ({(request_s - least) * 1e6:+6.1f})  {token_s * 1e6:5.2f} us/token")


if __name__ == "__main__":
    main()

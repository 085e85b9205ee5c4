"""What Baton's metrics cost: per token, per request, and per page of a thousand workers.

    make bench-metrics

In one process and without engines. The cost of a token is that of its time stamps, with the gap between tokens that the
inter-token latency is made of and without it. The cost of a request is that of its route receipt in all metrics, beside
an observer that does nothing, and as a share of the session that it belongs to, over workers that answer at once. A
page is joined from the metrics of a worker with an engine, as each worker renders them. CPU time of the process, the
median of several rounds.
"""

import argparse
import asyncio
import gc
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from statistics import median
from time import process_time

from cluster.messages.generation import FinishReason, GenerateRequest, PromptTokenSources, TokenDelta
from cluster.messages.ids import Path, RequestId, WorkerId
from cluster.messages.placement import Placement, PlacementRequest, Prediction, Slo
from cluster.messages.retention import ToolWait
from cluster.messages.scheduler_events import HandoffChecked, SchedulerEvent
from kvtransfer.handoff import KVHandoff, PrefillResult, PulledBlocks
from router.session.ports import SessionPorts
from router.session.receipt import RequestObserver, RouteReceipt
from router.session.session import Session
from router.session.timing import Timing

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from vllm.config import ModelConfig, VllmConfig

from api.server.receipt_log import ReceiptLog
from bench.goals.metrics_cost import missed
from bench.goals.verdict import conclude
from cluster.engine.statistics.engine_metrics import EngineMetrics
from cluster.metrics.page import render, scrape
from cluster.repository import REPO_ROOT

NUM_TOKENS, NUM_REQUESTS, ROUNDS, NUM_WORKERS = 200, 300, 9, 1000
WORKER = WorkerId("d0")
PLACED = Placement(
    path=Path.DECODE,
    prefill=None,
    decode=WORKER,
    why="the bench wants it",
    slo=Slo(1.0, 0.05),
    predicted=Prediction(Path.DECODE, None, WORKER, 0.5, 0.02, 0.1, 0.0, 0.2, 0.3),
)


class UnmeasuredTiming(Timing):
    """Times without gaps."""

    def released(self, delta: TokenDelta, now: float) -> None:
        num_tokens = len(delta.token_ids)
        self.num_output_tokens += num_tokens
        if delta.sequence or not num_tokens:
            return
        if self._first_at is None:
            self._first_at = now
        self._last_at = now
        self._num_tokens += num_tokens


class Scheduler:
    async def place(self, request: PlacementRequest) -> Placement:
        return PLACED

    def when_to_pause(self, request_id: RequestId, pause: Callable[[int], None]) -> None: ...

    def tell(self, event: SchedulerEvent) -> None: ...


class Prefill:
    async def prefill(self, worker: WorkerId, request: GenerateRequest) -> PrefillResult | None:
        return None

    def withdraw(self, worker: WorkerId, request_id: RequestId) -> None: ...


class Decode:
    async def generate(
        self, worker: WorkerId, request: GenerateRequest, handoff: KVHandoff | None
    ) -> AsyncGenerator[TokenDelta, None]:
        yield TokenDelta(0, [7], prompt_sources=PromptTokenSources(300, 200, 0))
        for _ in range(NUM_TOKENS - 2):
            yield TokenDelta(0, [7])
        yield TokenDelta(0, [7], FinishReason.STOP)

    def pause(self, worker: WorkerId, request_id: RequestId) -> None: ...

    def forget(self, worker: WorkerId, blocks: PulledBlocks | None) -> None: ...

    def await_tools(self, worker: WorkerId, wait: ToolWait) -> None: ...


class Nobody:
    """An observer that does nothing, but keeps the last receipt."""

    def __init__(self) -> None:
        self.last: RouteReceipt | None = None

    def closed(self, receipt: RouteReceipt) -> None:
        self.last = receipt

    def verified(self, checked: HandoffChecked) -> None: ...


def token_s(kind: type[Timing]) -> float:
    """CPU seconds of the time stamps of one token."""
    delta = TokenDelta(0, [7])
    began = process_time()
    for number in range(NUM_REQUESTS):
        timing, now = kind(0.0), 0.5
        for _ in range(NUM_TOKENS):
            now += 0.011 + number * 1e-4
            timing.released(delta, now)
    return (process_time() - began) / (NUM_REQUESTS * NUM_TOKENS)


def receipt_s(observer: RequestObserver, receipt: RouteReceipt) -> float:
    """CPU seconds that an observer takes for one receipt."""
    began = process_time()
    for _ in range(NUM_REQUESTS):
        observer.closed(receipt)
    return (process_time() - began) / NUM_REQUESTS


async def session_s(observer: RequestObserver) -> float:
    """CPU seconds of one session, whose workers answer at once."""
    ports = SessionPorts(scheduler=Scheduler(), prefill=Prefill(), decode=Decode(), observer=observer)
    began = process_time()
    for number in range(NUM_REQUESTS):
        request = GenerateRequest(request_id=RequestId(f"r{number}"), prompt_token_ids=[1] * 500, sampling_params=b"")
        async with aclosing(Session(request, ports, first_token_timeout_s=60.0).run()) as deltas:
            async for _ in deltas:
                pass
    return (process_time() - began) / NUM_REQUESTS


def page() -> tuple[float, float, int]:
    """CPU seconds to render the metrics of a worker and to join those of NUM_WORKERS, and the bytes of the page."""
    model = ModelConfig(
        model=str(REPO_ROOT / "conf/models/baton-demo"), served_model_name="baton-demo", dtype="bfloat16", seed=0
    )
    EngineMetrics(VllmConfig(model_config=model), [0])
    rendered = []
    for _ in range(ROUNDS):
        began = process_time()
        one = scrape("DecodeWorker", "default_DecodeWorker_abcdefgh")
        rendered.append(process_time() - began)
    began = process_time()
    text = render([one] * NUM_WORKERS, model="baton-demo")
    return median(rendered), process_time() - began, len(text)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    nobody, log = Nobody(), ReceiptLog(100)
    asyncio.run(session_s(log))
    session = asyncio.run(session_s(nobody))
    receipt = nobody.last
    assert receipt is not None
    gc.collect()
    gc.freeze()
    kinds = (Timing, UnmeasuredTiming)
    of_token = list(zip(*[[token_s(kind) for kind in kinds] for _ in range(ROUNDS)], strict=True))
    of_receipt = list(zip(*[[receipt_s(each, receipt) for each in (log, nobody)] for _ in range(ROUNDS)], strict=True))
    gap = median(of_token[0]) - median(of_token[1])
    closed = median(of_receipt[0]) - median(of_receipt[1])
    rendered, joined, num_bytes = page()
    print(f"a token: {1e6 * median(of_token[0]):.2f} us with gaps, {1e6 * median(of_token[1]):.2f} us without")
    print(f"a closed request: {1e6 * closed:.0f} us in metrics")
    share = (closed + NUM_TOKENS * gap) / session
    print(f"both, of the session of {NUM_TOKENS} tokens: {100 * share:.1f} % of {1e6 * session:.0f} us")
    print(f"a worker renders its metrics in {1e3 * rendered:.1f} ms")
    print(f"a page of {NUM_WORKERS} workers: {joined:.2f} s, {num_bytes / 1e6:.0f} MB")
    conclude(missed(share, joined, num_bytes))


if __name__ == "__main__":
    main()

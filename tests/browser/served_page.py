"""A page on loopback, over an ingress with fakes, as a browser finds it."""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from api.frontend.generation import Call
from api.server.listener import HttpListener
from api.server.protocol import Gatekeeper
from api.server.receipt_log import ReceiptLog
from cluster.config.ingress import IngressConfig
from cluster.errors import WorkerUnreachable
from cluster.messages.generation import PromptTokenSources
from cluster.messages.ids import Outcome, Path, SloClass, WorkerId
from cluster.messages.operations import SchedulerStatus, WorkerCondition
from cluster.messages.placement import Placement, Prediction, Rejection, Slo
from cluster.messages.timeline import TimelineStage
from cluster.messages.views import QueuedRequest
from cluster.rpc.shared_answer import SharedAnswer
from router.session.receipt import RouteReceipt
from tests.component.app_with_fakes import FakeCluster, FakeFrontend, an_admin_app, an_app
from tests.unit.factories import a_receipt
from tests.unit.statuses import a_scheduler_status, a_worker_status

OFTEN_S = 0.05
"""Age up to which a document is given again in these tests."""


class SpokenFrontend(FakeFrontend):
    """Answers with `pieces`, and closes a receipt when the answer has ended. While `gate` is shut, only the first piece
    comes.
    """

    def __init__(self, receipts: ReceiptLog) -> None:
        super().__init__()
        self.receipts = receipts
        self.pieces = ["Good ", "morning."]
        self.gate = asyncio.Event()
        self.gate.set()
        self.aborted = asyncio.Event()

    async def chat_completion(self, body: Any, call: Call) -> dict[str, Any] | AsyncGenerator[str, None]:
        self.bodies.append(("chat", body))
        self.terms.append(call.terms)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self._spoken(call)

    async def _spoken(self, call: Call) -> AsyncGenerator[str, None]:
        call.placement = placement()
        ended = Outcome.ABORTED
        try:
            for piece in self.pieces:
                frame = {"choices": [{"index": 0, "delta": {"content": piece}}]}
                yield f"data: {msgspec.json.encode(frame).decode()}\n\n"
                await self.gate.wait()
            ended = Outcome.FINISHED
        finally:
            if ended is Outcome.ABORTED:
                self.aborted.set()
            receipt = served(f"chatcmpl-{call.id}", outcome=ended, http_request=call.terms.http_request)
            self.receipts.closed(receipt)


class ShownCluster(FakeCluster):
    def __init__(self) -> None:
        super().__init__()
        self.is_away = False
        self.waiting: list[QueuedRequest] = []
        self.workers = [
            a_worker_status("p0", num_placed=1, num_open=1, num_running=1, num_leases=2, kv_usage=0.25),
            a_worker_status("d0", num_placed=3, num_open=3, num_running=2, num_waiting=1, kv_usage=0.5),
        ]

    async def statuses(self) -> list[SchedulerStatus]:
        if self.is_away:
            raise WorkerUnreachable("the Scheduler cannot be reached", "scheduler")
        waiting = Counter(request.slo_class for request in self.waiting)
        return [a_scheduler_status(*self.workers, waiting=dict(waiting))]

    async def queue(self) -> list[QueuedRequest]:
        return self.waiting

    def grow(self, number: int) -> None:
        """So many workers, the half of them in each pool. The first ones get no requests."""
        self.workers = [
            a_worker_status(
                f"{name}-{n:04}",
                kv_usage=n / number,
                num_open=n,
                condition=WorkerCondition.READY if n else WorkerCondition.DRAINING,
            )
            for name in ("prefill", "decode")
            for n in range(number // 2)
        ]


class ServedPage:
    """`frontend`, `cluster` and `receipts` are what the page shows."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.receipts = ReceiptLog(50)
        self.frontend = SpokenFrontend(self.receipts)
        self.cluster = ShownCluster()
        self.admin = an_admin_app(an_app(self.frontend, self.cluster, self.receipts, allowed_hosts=[]))
        documents = self.admin.state.live
        documents._shared = SharedAnswer(documents._encoded, OFTEN_S)
        self._listener: HttpListener | None = None

    async def start(self) -> None:
        gatekeeper = Gatekeeper(IngressConfig(port=self.port, host="127.0.0.1"))
        self._listener = await HttpListener.start(self.admin, gatekeeper, "baton")

    async def stop(self) -> None:
        if self._listener is not None:
            await self._listener.close()
            self._listener = None


@asynccontextmanager
async def served_page() -> AsyncIterator[ServedPage]:
    page = ServedPage(free_port())
    await page.start()
    try:
        yield page
    finally:
        page.frontend.gate.set()
        await page.stop()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def placement(path: Path = Path.PREFILL_DECODE) -> Placement:
    prefill = None if path is Path.DECODE else WorkerId("p0")
    decode = None if path is Path.PREFILL else WorkerId("d0")
    predicted = Prediction(path, prefill, decode, 0.4, 0.02, 0.1, 0.0, 0.2, 0.3)
    return Placement(
        path=path, prefill=prefill, decode=decode, why="it costs least", slo=Slo(1.0, 0.05), predicted=predicted
    )


STAGES = (
    TimelineStage("prepare", 0.0, 0.02, "ingress", {"prompt_tokens": 40}),
    TimelineStage("queue", 0.02, 0.12, "scheduler"),
    TimelineStage("placement", 0.12, 0.13, "scheduler", {"path": "P->D", "why": "it costs least"}),
    TimelineStage("prefill", 0.13, 0.4, "p0", {"tokens": 24}),
    TimelineStage("pull_transfer", 0.4, 0.48, "d0", {"bytes": 81920}),
    TimelineStage("network", 0.48, 0.5, "d0"),
    TimelineStage("decode", 0.5, 1.5, "d0", {"tokens": 3}),
)


def served(request_id: str = "chatcmpl-served", **fields: Any) -> RouteReceipt:
    """A request that was handed over."""
    defaults: dict[str, Any] = {
        "placement": placement(),
        "num_prompt_tokens": 40,
        "prefill_sources": PromptTokenSources(24, 16, 0),
        "sources": PromptTokenSources(0, 0, 40),
        "timeline": STAGES,
        "duration_s": 1.5,
    }
    return a_receipt(request_id, **(defaults | fields))


def all_kinds() -> list[RouteReceipt]:
    """A receipt of each path and outcome."""
    nothing: dict[str, Any] = {"ttft_s": None, "tpot_s": None, "num_output_tokens": 0, "sources": None}
    return [
        served(),
        served("chatcmpl-on-d", placement=placement(Path.DECODE), prefill_sources=None, slo_class=SloClass.INTERACTIVE),
        served("chatcmpl-on-p", placement=placement(Path.PREFILL), prefill_sources=None, slo_class=SloClass.BATCH),
        served("chatcmpl-late", ttft_s=3.0),
        served("chatcmpl-left", outcome=Outcome.ABORTED),
        served("chatcmpl-failed", outcome=Outcome.FAILED, error="engine_lost", **nothing),
        a_receipt(
            "chatcmpl-refused",
            outcome=Outcome.REJECTED,
            rejection=Rejection(retry_after_s=2.0, why="all workers are busy", is_overload=True),
            timeline=(TimelineStage("queue", 0.02, 0.9, "scheduler"),),
            duration_s=0.9,
            **nothing,
        ),
    ]

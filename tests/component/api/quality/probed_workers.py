"""Workers whose answers a test chooses, behind the real Scheduler's state and real sessions."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path as FilePath
from typing import Any

import numpy as np
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.outputs import LogprobsLists
from vllm.v1.serial_utils import MsgpackEncoder

from api.quality.asking import Asker
from api.quality.board import QualityView
from api.quality.probe_set import ProbeSet
from api.quality.prober import ProbePorts, QualityProber
from api.quality.references import ReferenceStore
from api.quality.replicas import ProbeReplicas
from api.state.redis.client import RedisClient
from cluster.config.observability.quality_probe import QualityProbeConfig
from cluster.messages.generation import FinishReason, GenerateRequest, PromptTokenSources, TokenDelta
from cluster.messages.ids import Path, RequestId, WorkerId
from cluster.messages.placement import Placement, PlacementRequest, Rejection
from cluster.messages.quality import WorkerQuarantine
from cluster.messages.retention import ToolWait
from cluster.messages.scheduler_events import HandoffChecked, RequestClosed, SchedulerEvent
from cluster.messages.views import ClusterView
from kvtransfer.handoff import KVHandoff, PrefillResult, PulledBlocks
from router.pending_placements import PendingPlacements
from router.session.ports import SessionPorts
from router.session.receipt import RequestObserver, RouteReceipt, Terms
from router.session.session import Session
from router.state import RouterState
from tests.unit.factories import a_decode_report, a_placement_request, a_prefill_report, a_prefill_result

NUM_TOP = 5


class LocalScheduler:
    """A `SchedulerPort` in this process."""

    def __init__(self, state: RouterState) -> None:
        self._pending = PendingPlacements(state)
        self.place = self._pending.place

    def when_to_pause(self, request_id: RequestId, pause: Callable[[int], None]) -> None:
        """Nothing pauses here."""

    def tell(self, event: SchedulerEvent) -> None:
        self._pending.tell(event)


class Clients:
    """The observer of the requests of clients."""

    def __init__(self) -> None:
        self.receipts: list[RouteReceipt] = []

    def closed(self, receipt: RouteReceipt) -> None:
        self.receipts.append(receipt)

    def verified(self, checked: HandoffChecked) -> None:
        raise AssertionError("nothing is verified here")


class ProbedWorkers:
    """Prefill workers p0, p1, ... and decode workers d0, d1, ..., all linked. Each answers a prompt as all others do,
    unless it is in `wrong`.
    """

    def __init__(self, num_prefill: int = 2, num_decode: int = 2) -> None:
        self.state = RouterState()
        self.prefills = [f"p{i}" for i in range(num_prefill)]
        self.decodes = [f"d{i}" for i in range(num_decode)]
        self.scheduler = LocalScheduler(self.state)
        self.wrong: set[str] = set()
        self.shift = 0
        """What is added to the tokens of all workers, as by an update to another model."""
        self.asked: Counter[tuple[str, Path]] = Counter()
        self.salts: list[str] = []
        self.clients = Clients()
        self.ports = SessionPorts(scheduler=self.scheduler, prefill=self, decode=self, observer=self.clients)

    async def view(self) -> ClusterView:
        """All workers report, and are seen."""
        now = asyncio.get_running_loop().time()
        for prefill in self.prefills:
            self.state.handle(a_prefill_report(prefill), now)
        for decode in self.decodes:
            self.state.handle(a_decode_report(decode, " ".join(self.prefills)), now)
        return self.state.view(now)

    async def quarantine(self, told: WorkerQuarantine) -> None:
        self.state.quarantined.told(told.workers, asyncio.get_running_loop().time(), told.lease)

    def start_session(self, request: GenerateRequest, terms: Terms, observer: RequestObserver | None) -> Session:
        ports = SessionPorts(scheduler=self.scheduler, prefill=self, decode=self, observer=observer or self.clients)
        return Session(request, ports, terms, first_token_timeout_s=5.0)

    async def prefill(self, worker: WorkerId, request: GenerateRequest) -> PrefillResult | None:
        self.asked[worker, Path.PREFILL_DECODE] += 1
        return a_prefill_result(worker=worker)

    def withdraw(self, worker: WorkerId, request_id: RequestId) -> None:
        """No handoff is kept here."""

    async def generate(
        self, worker: WorkerId, request: GenerateRequest, handoff: KVHandoff | None
    ) -> AsyncGenerator[TokenDelta, None]:
        alone = Path.PREFILL if worker.startswith("p") else Path.DECODE
        self.asked[worker, Path.PREFILL_DECODE if handoff else alone] += 1
        self.salts.append(request.cache_salt or "")
        is_wrong = worker in self.wrong or (handoff is not None and handoff.worker in self.wrong)
        first = sum(request.prompt_token_ids) % 1000 + self.shift + (5000 if is_wrong else 0)
        num = request.max_output_tokens or 1
        for number in range(num):
            await asyncio.sleep(0)
            finish = FinishReason.LENGTH if number == num - 1 else None
            sources = PromptTokenSources(len(request.prompt_token_ids), 0, 0) if not number else None
            yield a_delta_of(first + number, finish, sources)

    def pause(self, worker: WorkerId, request_id: RequestId) -> None:
        """Nothing pauses here."""

    def await_tools(self, worker: WorkerId, wait: ToolWait) -> None:
        raise AssertionError("no tools are called here")

    def forget(self, worker: WorkerId, blocks: PulledBlocks | None) -> None:
        raise AssertionError("nothing is dropped here")

    async def tokens_of_text(self, text: str) -> list[int]:
        return [ord(character) for character in text[:40]]

    async def tokens_of_chat(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        return [ord(character) for message in messages for character in message["content"][:40]]

    async def workers_of_clients(self, num: int = 12) -> set[str]:
        """Where requests of clients are placed now."""
        await self.view()
        placed: set[str] = set()
        for number in range(num):
            request: PlacementRequest = a_placement_request(f"client-{number}-{len(self.salts)}")
            answer: Placement | Rejection = await self.scheduler.place(request)
            assert isinstance(answer, Placement), answer
            placed |= {worker for worker in (answer.prefill, answer.decode) if worker is not None}
            self.scheduler.tell(RequestClosed(request_id=request.request_id))
        return placed

    def prober(
        self,
        folder: FilePath,
        redis: RedisClient | None = None,
        replica: str = "i0",
        given: ProbeSet | None = None,
        **config: Any,
    ) -> QualityProber:
        """It probes often. Without a Redis, it is the only replica."""
        client = redis or RedisClient()
        often = QualityProbeConfig(**({"every_s": 0.4, "max_share": 1.0, "tokens": 4} | config))
        return QualityProber(
            often,
            "model",
            given,
            ProbePorts(self, Asker(self.start_session, often.tokens), self, self.quarantine),
            ProbeReplicas(client, "service", replica, is_alone=redis is None),
            ReferenceStore(folder, client),
        )


def a_delta_of(token: int, finish: FinishReason | None, sources: PromptTokenSources | None) -> TokenDelta:
    """One token with the most likely ones of its step, as an engine reports them."""
    tokens = [token, *range(token, token + NUM_TOP)]
    logprobs = np.array([[-0.5, -0.5, -2.0, -3.0, -4.0, -5.0]], dtype=np.float32)
    lists = LogprobsLists(np.array([tokens]), logprobs, np.array([1]))
    frames = MsgpackEncoder().encode(EngineCoreOutput("", [], new_logprobs=lists))
    return TokenDelta(0, [token], finish, prompt_sources=sources, logprobs=tuple(bytes(frame) for frame in frames))


def scores(view: QualityView) -> dict[str, float | None]:
    """By worker and path."""
    return {f"{target.worker} {target.path}": target.score for target in view.targets}

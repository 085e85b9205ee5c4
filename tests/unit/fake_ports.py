"""A session's ports without a cluster: the Scheduler is a real RouterState, the workers do what a test tells them."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any

import msgspec

from cluster.errors import RequestPaused
from cluster.messages.generation import (
    FinishReason,
    GenerateRequest,
    PromptTokenSources,
    TokenDelta,
    TokenLogprob,
)
from cluster.messages.ids import Path, RequestId, WorkerId
from cluster.messages.placement import Placement, PlacementRequest, Rejection
from cluster.messages.retention import ToolWait
from cluster.messages.scheduler_events import HandoffChecked, RequestClosed, SchedulerEvent, WorkerLost
from kvtransfer.handoff import KVHandoff, PrefillResult, PulledBlocks
from router.placement.candidates import Candidates, Choice
from router.placement.placement_input import PlacementInput
from router.prediction.learned_latency import LatencyModels
from router.session.ports import SessionPorts
from router.session.receipt import RouteReceipt, Terms
from router.session.session import Session
from router.state import RouterState
from tests.unit.factories import a_decode_report, a_delta, a_prefill_report, a_prefill_result

BLOCK_HASHES = [b"12345678"]


def pairs_first(ask: PlacementInput, candidates: Candidates, models: LatencyModels) -> Choice | None:
    """Path P->D where it can be, then D, then P: a request of a few tokens would not be handed over otherwise."""
    if candidates.may_hand_over:
        for prefill in candidates.prefills:
            for decode in candidates.decodes:
                if candidates.can_pair(prefill, decode):
                    return Choice(Path.PREFILL_DECODE, prefill, decode, "a pair")
    if candidates.may_stay and candidates.decodes:
        return Choice(Path.DECODE, None, candidates.decodes[0], "no pair")
    if candidates.may_prefill_alone and candidates.prefills:
        return Choice(Path.PREFILL, candidates.prefills[0], None, "no decode worker")
    return None


SERVED = [10, 11, 12]
"""What every request is answered with."""


class Gate:
    """A point that is passed at once, unless a test holds it."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self._open = asyncio.Event()
        self._open.set()

    def hold(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    async def passed(self) -> None:
        self.reached.set()
        await self._open.wait()


async def loop_rounds(number: int) -> None:
    """Let every task that is ready run, `number` times."""
    for _ in range(number):
        await asyncio.sleep(0)


class FakeScheduler:
    def __init__(self, num_prefill: int = 2, num_decode: int = 2, delay_rounds: int = 0) -> None:
        self.requests: list[PlacementRequest] = []
        self.answers: list[Placement | Rejection] = []
        self.told: list[SchedulerEvent] = []
        self.pauses: dict[RequestId, Callable[[int], None]] = {}
        """How each request is told to pause."""
        self.gate, self.answer_gate = Gate(), Gate()
        self.refusal: Rejection | None = None
        """Its answer to every request."""
        self.holds_first_until_s = 0.0
        """That its placements say."""
        self.delay_rounds = delay_rounds
        self._state = RouterState(policy=pairs_first, admits_all=True)
        prefills = [f"p{i}" for i in range(num_prefill)]
        for worker in prefills:
            self._state.handle(a_prefill_report(worker), now=0.0)
        for i in range(num_decode):
            self._state.handle(a_decode_report(f"d{i}", " ".join(prefills)), now=0.0)

    async def place(self, request: PlacementRequest) -> Placement | Rejection:
        self.requests.append(request)
        await self.gate.passed()
        await loop_rounds(self.delay_rounds)
        answer = self.refusal or self._state.place(request, now=0.0)
        assert answer is not None
        if isinstance(answer, Placement):
            answer = msgspec.structs.replace(answer, holds_first_until_s=self.holds_first_until_s)
        self.answers.append(answer)
        await self.answer_gate.passed()
        return answer

    def when_to_pause(self, request_id: RequestId, pause: Callable[[int], None]) -> None:
        self.pauses[request_id] = pause

    def tell(self, event: SchedulerEvent) -> None:
        self.told.append(event)
        self._state.handle(event, now=0.0)

    @property
    def paths(self) -> list[Path]:
        return [answer.path for answer in self.answers if isinstance(answer, Placement)]

    @property
    def num_charged(self) -> int:
        return sum(worker.num_placed for worker in self._state.view(now=0.0).workers)

    @property
    def num_closed(self) -> int:
        return sum(isinstance(event, RequestClosed) for event in self.told)

    @property
    def lost(self) -> list[str]:
        return [event.worker for event in self.told if isinstance(event, WorkerLost)]


class FakePrefill:
    """Samples token 10 after a prompt, 11 after a prompt and one generated token, and so on."""

    def __init__(self, failures: dict[str, Exception] | None = None, delay_rounds: int = 0) -> None:
        self.failures = failures or {}
        self.called: list[str] = []
        self.requests: list[GenerateRequest] = []
        self.granted: list[KVHandoff] = []
        self.cancelled: list[str] = []
        self.withdrawn: list[tuple[str, RequestId]] = []
        self.gate, self.answer_gate = Gate(), Gate()
        self.top_logprobs: list[TokenLogprob] | None = None
        self.ends_after = len(SERVED)
        """Tokens after which the answer is over."""
        self.delay_rounds = delay_rounds
        self.num_generated: Counter[str] = Counter()
        """Tokens by worker, as its engine counts them."""
        self._open: dict[tuple[str, RequestId], KVHandoff] = {}

    async def prefill(self, worker: WorkerId, request: GenerateRequest) -> PrefillResult | None:
        self.called.append(worker)
        self.requests.append(request)
        try:
            await self.gate.passed()
            await loop_rounds(self.delay_rounds)
        except asyncio.CancelledError:
            self.cancelled.append(worker)
            raise
        if (failure := self.failures.get(worker)) is not None:
            raise failure
        number = request.num_generated
        finish = FinishReason.STOP if number + 1 == self.ends_after else None
        lease = f"{request.request_id}-{len(self.granted)}"
        result = a_prefill_result(lease, token=SERVED[number], finish=finish, worker=worker)
        result = msgspec.structs.replace(
            result, first=msgspec.structs.replace(result.first, top_logprobs=self.top_logprobs)
        )
        self.num_generated[worker] += 1
        if request.is_resumable and finish:
            return msgspec.structs.replace(result, handoff=None)
        assert result.handoff is not None
        self.granted.append(result.handoff)
        self._open[worker, request.request_id] = result.handoff
        await self.answer_gate.passed()
        await loop_rounds(self.delay_rounds)
        return result

    def withdraw(self, worker: WorkerId, request_id: RequestId) -> None:
        self.withdrawn.append((worker, request_id))
        self._open.pop((worker, request_id), None)

    def redeem(self, handoff: KVHandoff) -> bool:
        """What a decode worker does before it pulls."""
        key = next((key for key, offered in self._open.items() if offered is handoff), None)
        return self._open.pop(key, None) is not None if key else False

    @property
    def num_kept(self) -> int:
        """Handoffs whose blocks only the end of their lease would free."""
        return len(self._open)


class FakeDecode:
    """Gives one token per delta: 10, 11, 12, or the rest of them. A worker may fail before or after its first, or
    report an engine error.
    """

    def __init__(
        self,
        fails_before: dict[str, Exception] | None = None,
        fails_after: dict[str, Exception] | None = None,
        error_on: Iterable[str] = (),
        delay_rounds: int = 0,
    ) -> None:
        self.fails_before = fails_before or {}
        self.fails_after = fails_after or {}
        self.error_on = frozenset(error_on)
        self.delay_rounds = delay_rounds
        self.given: list[tuple[str, KVHandoff | None]] = []
        self.requests: list[GenerateRequest] = []
        self.pulled: list[KVHandoff] = []
        self.waits: list[tuple[str, ToolWait]] = []
        self.forgotten: list[tuple[str, PulledBlocks | None]] = []
        self.top_logprobs: list[TokenLogprob] | None = None
        self.top_logprobs_of: dict[str, list[TokenLogprob]] = {}
        """Log-probabilities of single workers whose answers differ."""
        self.top_logprobs_of_copies: list[TokenLogprob] | None = None
        """Log-probabilities from pulled blocks, if they differ."""
        self.cut_off: dict[str, FinishReason] = {}
        """How workers end every answer with their first token, for workers that do."""
        self.hangs_on: set[str] = set()
        self.fails_without_handoff: dict[str, Exception] = {}
        """How workers fail on requests for a computation anew, for workers that do."""
        self.num_ended = 0
        self.num_generated: Counter[str] = Counter()
        """Tokens by worker, as its engine counts them."""
        self._open: set[tuple[str, RequestId]] = set()
        """Streams by worker and request."""
        self._pausing: set[tuple[str, RequestId]] = set()
        """Streams that are to pause."""
        self.gate, self.start_gate, self.anew_gate = Gate(), Gate(), Gate()
        self.redeem: Callable[[KVHandoff], bool] = lambda handoff: True

    def generate(
        self, worker: WorkerId, request: GenerateRequest, handoff: KVHandoff | None
    ) -> AsyncGenerator[TokenDelta, None]:
        self.given.append((worker, handoff))
        self.requests.append(request)
        return self._deltas(worker, request, handoff)

    async def _deltas(
        self, worker: str, request: GenerateRequest, handoff: KVHandoff | None
    ) -> AsyncGenerator[TokenDelta, None]:
        first, *others = SERVED[request.num_generated :]
        self._open.add((worker, request.request_id))
        try:
            await self.start_gate.passed()
            await loop_rounds(self.delay_rounds)
            if request.request_id.endswith("-anew"):
                await self.anew_gate.passed()
                if worker in self.fails_without_handoff:
                    raise self.fails_without_handoff[worker]
            if worker in self.fails_before:
                raise self.fails_before[worker]
            if worker in self.hangs_on:
                await asyncio.Event().wait()
            pulled = 0
            if handoff is not None and self.redeem(handoff):
                self.pulled.append(handoff)
                pulled = 4
            self.num_generated[worker] += worker not in self.error_on
            if worker in self.error_on:
                yield a_delta(finish=FinishReason.ERROR)
            yield msgspec.structs.replace(
                a_delta(
                    first,
                    sources=PromptTokenSources(4 - pulled, 0, pulled),
                    finish=None if others else FinishReason.STOP,
                ),
                top_logprobs=self._seen_by(worker, pulled > 0),
            )
            if worker in self.cut_off:
                yield a_delta(finish=self.cut_off[worker])
            for token in others:
                await self.gate.passed()
                await loop_rounds(self.delay_rounds)
                if (worker, request.request_id) in self._pausing:
                    raise RequestPaused("paused", worker)
                if worker in self.fails_after:
                    raise self.fails_after[worker]
                self.num_generated[worker] += 1
                yield a_delta(token, finish=FinishReason.STOP if token == SERVED[-1] else None)
        finally:
            self._open.discard((worker, request.request_id))
            try:
                await loop_rounds(self.delay_rounds)
            finally:
                self.num_ended += 1

    def pause(self, worker: WorkerId, request_id: RequestId) -> None:
        """Takes effect before the next token."""
        self._pausing |= {(worker, request_id)} & self._open

    def _seen_by(self, worker: str, is_copy: bool) -> list[TokenLogprob] | None:
        if is_copy and self.top_logprobs_of_copies is not None:
            return self.top_logprobs_of_copies
        return self.top_logprobs_of.get(worker, self.top_logprobs)

    def await_tools(self, worker: WorkerId, wait: ToolWait) -> None:
        self.waits.append((worker, wait))

    def forget(self, worker: WorkerId, blocks: PulledBlocks | None) -> None:
        self.forgotten.append((worker, blocks))


class FakeObserver:
    def __init__(self) -> None:
        self.receipts: list[RouteReceipt] = []
        self.checks: list[HandoffChecked] = []

    def closed(self, receipt: RouteReceipt) -> None:
        self.receipts.append(receipt)

    def verified(self, checked: HandoffChecked) -> None:
        self.checks.append(checked)


class FakeCluster:
    """Two prefill and two decode workers, all pairs connected, unless a test brings other parts."""

    def __init__(
        self,
        scheduler: FakeScheduler | None = None,
        prefill: FakePrefill | None = None,
        decode: FakeDecode | None = None,
    ) -> None:
        self.scheduler = scheduler or FakeScheduler()
        self.prefill = prefill or FakePrefill()
        self.decode = decode or FakeDecode()
        self.decode.redeem = self.prefill.redeem
        self.observer = FakeObserver()

    def session(
        self,
        request: GenerateRequest,
        path: Path | None = None,
        *,
        verifies: bool = False,
        first_token_timeout_s: float = 60.0,
        block_hashes: Sequence[bytes] = BLOCK_HASHES,
        **terms: Any,
    ) -> Session:
        ports = SessionPorts(scheduler=self.scheduler, prefill=self.prefill, decode=self.decode, observer=self.observer)
        return Session(
            request,
            ports,
            Terms(path=path, block_hashes=list(block_hashes), **terms),
            first_token_timeout_s=first_token_timeout_s,
            verifies=verifies,
        )

    def check_settled(self) -> None:
        """What must hold once a session has ended, however it ended."""
        assert len(self.observer.receipts) == 1
        placed = any(isinstance(answer, Placement) for answer in self.scheduler.answers)
        assert placed <= self.scheduler.num_closed <= 1
        assert self.scheduler.num_charged == 0
        assert self.decode.num_ended == len(self.decode.given)
        assert self.prefill.num_kept == 0

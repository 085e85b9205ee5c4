"""A session's ports without a cluster: the Scheduler is a real RouterState, the workers do what a test tells them."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterable

from factories import a_decode_report, a_delta, a_prefill_report, a_prefill_result

from cluster.types import (
    FinishReason,
    GenerateRequest,
    Path,
    Placement,
    PlacementRequest,
    PromptTokenSources,
    Rejection,
    RequestClosed,
    RequestId,
    TokenDelta,
    WorkerId,
    WorkerLost,
)
from kvtransfer.handoff import KVHandoff, PrefillResult
from router.session import RouteReceipt, Session, SessionPorts
from router.state import RouterState


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


async def turns(number: int) -> None:
    """Let everything that is ready run, so many times."""
    for _ in range(number):
        await asyncio.sleep(0)


class FakeScheduler:
    def __init__(self, num_prefill: int = 2, num_decode: int = 2, delay_turns: int = 0) -> None:
        self.requests: list[PlacementRequest] = []
        self.answers: list[Placement | Rejection] = []
        self.told: list[RequestClosed | WorkerLost] = []
        self.gate, self.answer_gate = Gate(), Gate()
        self.tell_error: Exception | None = None
        self.delay_turns = delay_turns
        self._state = RouterState()
        prefills = [f"p{i}" for i in range(num_prefill)]
        for worker in prefills:
            self._state.handle(a_prefill_report(worker), now=0.0)
        for i in range(num_decode):
            self._state.handle(a_decode_report(f"d{i}", " ".join(prefills)), now=0.0)

    async def place(self, request: PlacementRequest) -> Placement | Rejection:
        self.requests.append(request)
        await self.gate.passed()
        await turns(self.delay_turns)
        answer = self._state.place(request, now=0.0)
        self.answers.append(answer)
        await self.answer_gate.passed()
        return answer

    async def tell(self, event: RequestClosed | WorkerLost) -> None:
        self.told.append(event)
        if self.tell_error is not None:
            raise self.tell_error
        await turns(self.delay_turns)
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
    def __init__(self, failures: dict[str, Exception] | None = None, delay_turns: int = 0) -> None:
        self.failures = failures or {}
        self.called: list[str] = []
        self.granted: list[KVHandoff] = []
        self.aborted: list[tuple[str, RequestId]] = []
        self.gate = Gate()
        self.abort_error: Exception | None = None
        self.abort_comes_too_late = False
        self.delay_turns = delay_turns

    async def prefill(self, worker: WorkerId, request: GenerateRequest) -> PrefillResult | None:
        self.called.append(worker)
        await self.gate.passed()
        await turns(self.delay_turns)
        if (failure := self.failures.get(worker)) is not None:
            raise failure
        if self.aborted and not self.abort_comes_too_late:
            return None
        result = a_prefill_result(f"{request.request_id}-{len(self.granted)}")
        self.granted.append(result.handoff)
        return result

    async def abort(self, worker: WorkerId, request_id: RequestId) -> None:
        self.aborted.append((worker, request_id))
        self.gate.open()
        if self.abort_error is not None:
            raise self.abort_error


class FakeDecode:
    """Gives one token per delta: 10, 11, 12. A worker may fail before or after the first, or report an engine error."""

    def __init__(
        self,
        fails_before: dict[str, Exception] | None = None,
        fails_after: dict[str, Exception] | None = None,
        error_on: Iterable[str] = (),
        delay_turns: int = 0,
    ) -> None:
        self.fails_before = fails_before or {}
        self.fails_after = fails_after or {}
        self.error_on = frozenset(error_on)
        self.delay_turns = delay_turns
        self.given: list[tuple[str, KVHandoff | None]] = []
        self.released: list[tuple[str, KVHandoff]] = []
        self.pulled: list[KVHandoff] = []
        self.num_ended = 0
        self.gate = Gate()
        self.release_error: Exception | None = None

    def generate(
        self, worker: WorkerId, request: GenerateRequest, handoff: KVHandoff | None
    ) -> AsyncGenerator[TokenDelta, None]:
        self.given.append((worker, handoff))
        return self._deltas(worker, handoff)

    async def _deltas(self, worker: str, handoff: KVHandoff | None) -> AsyncGenerator[TokenDelta, None]:
        pulled = 4 if handoff else 0
        try:
            await turns(self.delay_turns)
            if worker in self.fails_before:
                raise self.fails_before[worker]
            if handoff is not None:
                self.pulled.append(handoff)
            if worker in self.error_on:
                yield a_delta(finish=FinishReason.ERROR)
            yield a_delta(10, sources=PromptTokenSources(4 - pulled, 0, pulled))
            await self.gate.passed()
            await turns(self.delay_turns)
            if worker in self.fails_after:
                raise self.fails_after[worker]
            yield a_delta(11)
            yield a_delta(12, finish=FinishReason.STOP)
        finally:
            try:
                await turns(self.delay_turns)
            finally:
                self.num_ended += 1

    async def release(self, worker: WorkerId, request_id: RequestId, handoff: KVHandoff) -> None:
        self.released.append((worker, handoff))
        if self.release_error is not None:
            raise self.release_error


class FakeObserver:
    def __init__(self) -> None:
        self.receipts: list[RouteReceipt] = []

    def closed(self, receipt: RouteReceipt) -> None:
        self.receipts.append(receipt)


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
        self.observer = FakeObserver()

    def session(self, request: GenerateRequest, path: Path | None = None) -> Session:
        ports = SessionPorts(scheduler=self.scheduler, prefill=self.prefill, decode=self.decode, observer=self.observer)
        return Session(request, ports, path)

    def check_settled(self) -> None:
        """What must hold once a session has ended, however it ended."""
        assert len(self.observer.receipts) == 1
        placed = any(isinstance(answer, Placement) for answer in self.scheduler.answers)
        assert placed <= self.scheduler.num_closed <= 1
        assert self.scheduler.num_charged == 0
        assert self.decode.num_ended == len(self.decode.given)
        ends = Counter(map(_identity, self.decode.pulled + [handoff for _, handoff in self.decode.released]))
        assert ends == Counter(map(_identity, self.prefill.granted))


def _identity(handoff: KVHandoff) -> str:
    return str(handoff.params["remote_request_id"])

"""A worker around an engine that does what a test says, and a Scheduler that takes its reports."""

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest
from prometheus_client import REGISTRY

from cluster.clients.scheduler_client import SchedulerClient
from cluster.config.pools import PoolConfig
from cluster.engine.port import EngineHooks, WorkerEngine
from cluster.errors import ServingError
from cluster.messages.ids import Pool, RequestId, WorkerId
from cluster.messages.kv_events import KvEvents
from cluster.messages.reports import (
    EngineShape,
    LinkOrder,
    ReportReply,
    StepSample,
    TransferSample,
    WorkerLoad,
    WorkerReport,
)
from cluster.messages.scheduler_events import WorkerLeft
from cluster.messages.transport import WorkerTransport
from cluster.rpc.connection import Service
from cluster.worker import worker as worker_module
from cluster.worker.worker import Worker, WorkerHooks
from kvtransfer.handoff import PulledBlocks
from kvtransfer.lease_terms import LeaseEnd, LeaseId

ME, PREFILL = WorkerId("d0"), WorkerId("p0")
SAMPLE = StepSample(0, 0, 1, 10, 0.01)
TRANSFER = TransferSample(PREFILL, 100, 0.1)
ENDED = [(LeaseId("lease"), LeaseEnd.READ)]


class NoKvEvents:
    def connect(self) -> None: ...

    def event(self) -> None: ...

    def ask_for_replay(self, first: int) -> None: ...

    def replayed(self) -> None: ...

    def remove_names(self) -> None: ...


class FakeEngine:
    def __init__(self) -> None:
        self.shape, self.transport, self.kv_events = EngineShape(kind="fake"), WorkerTransport(), NoKvEvents()
        self.open_requests = [RequestId("r")]
        self.hooks: EngineHooks | None = None
        self.is_dead = False
        self.idle = asyncio.Event()
        self.calls: list[str] = []

    def attach(self, hooks: EngineHooks) -> None:
        self.hooks = hooks

    async def warm_up(self) -> None:
        self.calls.append("warm_up")

    def load(self) -> WorkerLoad:
        return WorkerLoad(num_running=3)

    def take_samples(self) -> list[StepSample]:
        return [SAMPLE]

    async def answer(self) -> None: ...

    async def check_health(self) -> None:
        if self.is_dead:
            raise RuntimeError("the engine core is dead")

    async def forget(self, blocks: PulledBlocks) -> None:
        self.calls.append(f"forget {blocks.lender}")

    async def forget_prefixes(self) -> None:
        self.calls.append("forget_prefixes")

    async def drained(self) -> None:
        await self.idle.wait()

    async def hand_back_running(self) -> None:
        self.calls.append("hand_back_running")

    def shutdown(self) -> None:
        self.calls.append("shutdown")


class FakeScheduler(SchedulerClient):
    def __init__(self) -> None:
        self.reports: asyncio.Queue[WorkerReport] = asyncio.Queue()
        self.left: list[WorkerLeft] = []
        self.has_left = asyncio.Event()
        self.reply = ReportReply(link=LinkOrder(PREFILL))
        self.is_away = False

    def close(self) -> None:
        pass

    async def report(self, report: WorkerReport) -> ReportReply:
        self.reports.put_nowait(report)
        if self.is_away:
            raise ServingError("away")
        return self.reply

    async def say_leaving(self, left: WorkerLeft) -> None:
        self.left.append(left)
        self.has_left.set()

    async def send_kv_events(self, messages: list[KvEvents]) -> None: ...


class Made:
    """A worker, and what its hooks were called with."""

    def __init__(self, drain_s: float = 60.0) -> None:
        self.engine, self.scheduler = FakeEngine(), FakeScheduler()
        self.num_steps = 0
        self.ended: list[tuple[LeaseId, LeaseEnd]] = []
        self.replies: asyncio.Queue[ReportReply] = asyncio.Queue()
        self.worker = Worker(
            ME,
            Pool.DECODE,
            PoolConfig(engine={"model": "m"}, drain_s=drain_s),
            engine=cast(WorkerEngine, self.engine),  # the part that a worker calls by itself
            service=Service(),
            scheduler=self.scheduler,
            hooks=WorkerHooks(
                on_step=self._on_step,
                on_ended_leases=self.ended.extend,
                on_reply=self.replies.put_nowait,
                links=lambda: {PREFILL: None},
                take_transfers=lambda: [TRANSFER],
            ),
        )

    def _on_step(self) -> None:
        self.num_steps += 1

    async def report(self) -> WorkerReport:
        return await asyncio.wait_for(self.scheduler.reports.get(), 5)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "REPORT_INTERVAL_S", 0.01)


@pytest.fixture
async def made() -> AsyncIterator[Made]:
    made = Made()
    await made.worker.start("127.0.0.1")
    yield made
    made.engine.idle.set()
    await made.worker.leave()


async def test_engine_has_all_hooks_when_the_worker_is_made() -> None:
    made = Made()
    assert made.engine.hooks is not None
    made.engine.hooks.on_step()
    made.engine.hooks.on_ended_leases(ENDED)
    assert (made.num_steps, made.ended) == (1, ENDED)


async def test_steps_that_were_sampled_are_observed_once(made: Made) -> None:
    def number() -> float:
        return REGISTRY.get_sample_value("baton_engine_step_tokens_count", {"pool": "decode"}) or 0.0

    await made.report()
    before, reported = number(), 0
    while number() < before + 3:
        await made.report()
        reported += 1
    assert reported <= number() - before <= reported + made.scheduler.reports.qsize() + 1
    assert REGISTRY.get_sample_value("baton_engine_step_seconds_sum", {"pool": "decode", "step": "decode"})


async def test_reports_carry_what_the_engine_and_the_pool_know(made: Made) -> None:
    report = await made.report()
    assert made.engine.calls == ["warm_up"]
    assert (report.worker, report.pool, report.shape.kind) == (ME, Pool.DECODE, "fake")
    assert (report.load.num_running, report.steps) == (3, [SAMPLE])
    assert (report.links, report.transfers, report.requests) == ({PREFILL: None}, [TRANSFER], None)
    assert (await asyncio.wait_for(made.replies.get(), 5)).link == LinkOrder(PREFILL)


async def test_report_names_the_requests_once_the_scheduler_asks_for_them(made: Made) -> None:
    made.scheduler.reply = ReportReply(wants_requests=True)
    for _ in range(2):
        await made.report()
    assert (await made.report()).requests == [RequestId("r")]


async def test_event_loop_is_watched_until_the_worker_leaves() -> None:
    def num_watches() -> int:
        return sum("watch_event_loop" in repr(task.get_coro()) for task in asyncio.all_tasks())

    made = Made()
    await made.worker.start("127.0.0.1")
    assert num_watches() == 1
    made.engine.idle.set()
    await made.worker.leave()
    await asyncio.sleep(0)
    assert num_watches() == 0


async def test_reports_go_on_when_one_is_not_delivered(made: Made) -> None:
    made.scheduler.is_away = True
    for _ in range(3):
        await made.report()


async def test_worker_with_a_dead_engine_leaves_and_is_not_healthy(made: Made) -> None:
    await made.worker.check_health()
    made.engine.is_dead = True
    await asyncio.wait_for(made.scheduler.has_left.wait(), 5)
    assert made.scheduler.left[0].engine_silent_s is not None
    with pytest.raises(RuntimeError):
        await made.worker.check_health()


async def test_worker_that_has_failed_is_not_healthy(made: Made) -> None:
    made.worker.fail("its cache is wrong")
    with pytest.raises(RuntimeError, match="its cache is wrong"):
        await made.worker.check_health()


async def test_requests_that_outlast_the_grace_time_go_to_other_workers() -> None:
    made, drained = Made(drain_s=worker_module.HAND_BACK_S), list[str]()
    await made.worker.start("127.0.0.1")

    async def wait() -> None:
        drained.append("streams")

    await made.worker.leave(wait)
    assert made.scheduler.left == [WorkerLeft(worker=ME, engine_silent_s=None)]
    assert made.engine.calls == ["warm_up", "hand_back_running", "shutdown"]
    assert drained == ["streams"]


async def test_worker_waits_for_its_requests_before_the_engine_ends() -> None:
    made = Made()
    await made.worker.start("127.0.0.1")
    leaving = asyncio.create_task(made.worker.leave())
    await asyncio.sleep(0.05)
    assert "shutdown" not in made.engine.calls
    made.engine.idle.set()
    await asyncio.wait_for(leaving, 5)
    assert made.engine.calls == ["warm_up", "shutdown"]

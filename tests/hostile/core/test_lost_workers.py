"""What a request is told of a worker that it lost: that the worker died with it, or that this may be nobody's fault."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import pytest
import pytest_asyncio

from cluster.clients import worker_client
from cluster.clients.scheduler_client import SchedulerClient
from cluster.clients.worker_client import DecodeClient, PrefillClient, WorkerConnections
from cluster.errors import EngineLost, WorkerUnreachable
from cluster.messages.generation import GenerateRequest
from cluster.messages.ids import Address, RequestId, WorkerId
from cluster.rpc.connection import Connection, Service
from cluster.rpc.listener import Listener
from cluster.rpc.protocol import ANSWER, LOCATE, PREFILL, START, Start
from cluster.scheduler_registry import SchedulerRecord
from kvtransfer.handoff import PrefillResult
from tests.unit.factories import a_scheduler

WORKER = WorkerId("w0")
PATIENCE_S = 5.0


class FakeWorker:
    """Takes requests and never answers them."""

    def __init__(self) -> None:
        self.taken: asyncio.Queue[GenerateRequest] = asyncio.Queue()
        self.is_dead = False
        """Its engine, not its process."""
        self.service = Service()
        self.service.on_call(ANSWER, self._answer)
        self.service.on_call(PREFILL, self._prefill)
        self.service.on_post(START, self._start)
        self.connections: list[Connection] = []
        self.listener: Listener | None = None

    async def _answer(self, _: None) -> None:
        if self.is_dead:
            raise WorkerUnreachable("the engine does not answer", WORKER)

    async def _prefill(self, request: GenerateRequest) -> PrefillResult | None:
        self.taken.put_nowait(request)
        await asyncio.Event().wait()
        return None

    def _start(self, connection: Connection, start: Start) -> None:
        self.connections.append(connection)
        self.taken.put_nowait(start.request)

    async def die(self) -> None:
        assert self.listener is not None
        await self.listener.close()


@pytest_asyncio.fixture
async def worker() -> AsyncIterator[FakeWorker]:
    worker = FakeWorker()
    worker.listener = await Listener.start("127.0.0.1", worker.service)
    yield worker
    await worker.die()


@pytest_asyncio.fixture
async def known(worker: FakeWorker) -> AsyncIterator[WorkerConnections]:
    """An ingress's way to the worker, which the Scheduler knows."""

    async def locate(_: WorkerId) -> Address | None:
        assert worker.listener is not None
        return worker.listener.address

    service = Service()
    service.on_call(LOCATE, locate)
    scheduler = await Listener.start("127.0.0.1", service)

    async def find() -> SchedulerRecord:
        return a_scheduler(scheduler.address)

    yield WorkerConnections(SchedulerClient(find))
    await scheduler.close()


def a_request(*, is_suspect: bool = False) -> GenerateRequest:
    return GenerateRequest(request_id=RequestId("r"), prompt_token_ids=[1], sampling_params=b"", is_suspect=is_suspect)


async def prefill(known: WorkerConnections, request: GenerateRequest) -> None:
    await PrefillClient(known).prefill(WORKER, request)


async def generate(known: WorkerConnections, request: GenerateRequest) -> None:
    async with aclosing(DecodeClient(known).generate(WORKER, request, None)) as deltas:
        async for _ in deltas:
            pass


ways = pytest.mark.parametrize("ask", [prefill, generate])


@ways
async def test_worker_process_that_dies_with_a_request_is_an_engine_lost(
    known: worker_client.WorkerConnections, worker: FakeWorker, ask: Callable[..., Any]
) -> None:
    asking = asyncio.create_task(ask(known, a_request()))
    await asyncio.wait_for(worker.taken.get(), PATIENCE_S)
    await worker.die()
    with pytest.raises(EngineLost) as lost:
        await asyncio.wait_for(asking, PATIENCE_S)
    assert lost.value.worker == WORKER


async def test_connection_that_is_lost_to_a_worker_that_lives_is_no_engine_lost(
    known: worker_client.WorkerConnections, worker: FakeWorker
) -> None:
    asking = asyncio.create_task(generate(known, a_request()))
    await asyncio.wait_for(worker.taken.get(), PATIENCE_S)
    worker.connections[0].close()
    with pytest.raises(WorkerUnreachable) as lost:
        await asyncio.wait_for(asking, PATIENCE_S)
    assert not isinstance(lost.value, EngineLost)


async def test_worker_that_neither_refuses_nor_answers_is_no_engine_lost(
    known: worker_client.WorkerConnections, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when its machine, or the network, stands still."""
    monkeypatch.setattr(worker_client, "_GONE_TIMEOUT_S", 0.05)
    asking = asyncio.create_task(generate(known, a_request()))
    await asyncio.wait_for(worker.taken.get(), PATIENCE_S)

    async def silent(*_: object) -> Connection:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(worker_client, "connect", silent)
    worker.connections[0].close()
    with pytest.raises(WorkerUnreachable) as lost:
        await asyncio.wait_for(asking, PATIENCE_S)
    assert not isinstance(lost.value, EngineLost)


@ways
async def test_suspect_is_not_given_to_an_engine_that_is_dead_already(
    known: worker_client.WorkerConnections, worker: FakeWorker, ask: Callable[..., Any]
) -> None:
    await known.to(WORKER)
    worker.is_dead = True
    with pytest.raises(WorkerUnreachable) as lost:
        await asyncio.wait_for(ask(known, a_request(is_suspect=True)), PATIENCE_S)
    assert not isinstance(lost.value, EngineLost)
    assert worker.taken.empty()


@ways
async def test_suspect_is_given_to_an_engine_that_answers(
    known: worker_client.WorkerConnections, worker: FakeWorker, ask: Callable[..., Any]
) -> None:
    asking = asyncio.create_task(ask(known, a_request(is_suspect=True)))
    assert (await asyncio.wait_for(worker.taken.get(), PATIENCE_S)).is_suspect
    asking.cancel()
    await asyncio.wait([asking])

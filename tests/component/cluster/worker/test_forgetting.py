"""What a worker does when an ingress says that cached blocks are wrong, over a real connection."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from cluster.errors import ServingError
from cluster.messages.ids import WorkerId
from cluster.rpc.connection import Connection, Service
from cluster.rpc.listener import Listener, connect
from cluster.rpc.protocol import ANSWER, FORGET
from cluster.worker.forgetting import Forgetting
from kvtransfer.handoff import PulledBlocks
from kvtransfer.lease_terms import LeaseId

P0 = WorkerId("p0")
ONE, ALL_OF_P0 = PulledBlocks(P0, LeaseId("lease")), PulledBlocks(P0)


class Worker:
    """An engine that forgets, and fails, as a test says."""

    def __init__(self) -> None:
        self.service = Service()
        self.did: list[PulledBlocks | None] = []
        self.convicted: list[str] = []
        self.failures: list[str] = []
        self.knows_origins = self.can_empty = True
        self.bug: Exception | None = None
        """Raised by the next thing that it is asked for."""
        self.gate = asyncio.Event()
        self.gate.set()
        self.began = asyncio.Event()
        self.forgetting = Forgetting(
            self, self.service, on_convicted=self.convicted.append, on_failed=self.failures.append
        )

    async def forget(self, blocks: PulledBlocks) -> None:
        await self._do(blocks)
        if not self.knows_origins:
            raise ServingError("not known")

    async def forget_prefixes(self) -> None:
        await self._do(None)
        if not self.can_empty:
            raise ServingError("the engine died")

    async def _do(self, blocks: PulledBlocks | None) -> None:
        self.began.set()
        await self.gate.wait()
        self.did.append(blocks)
        bug, self.bug = self.bug, None
        if bug is not None:
            raise bug


async def done(worker: Worker, ingress: Connection) -> None:
    """Return when all wishes that were sent so far have been worked on."""
    async with asyncio.timeout(5):
        await ingress.call(ANSWER, None)  # in order
        assert worker.forgetting._working is not None
        await worker.forgetting._working


async def nothing(_: None) -> None:
    """The answer to ANSWER."""


@pytest.fixture
async def worker() -> Worker:
    return Worker()


@pytest.fixture
async def ingress(worker: Worker) -> AsyncIterator[Connection]:
    worker.service.on_call(ANSWER, nothing)
    listener = await Listener.start("127.0.0.1", worker.service)
    connection = await connect(listener.address, Service())
    yield connection
    connection.close()
    await listener.close()


async def test_one_wrong_copy_is_dropped_and_nobody_is_suspected(worker: Worker, ingress: Connection) -> None:
    ingress.post(FORGET, ONE)
    await done(worker, ingress)
    assert (worker.did, worker.convicted, worker.failures) == ([ONE], [], [])


async def test_everything_of_a_convicted_lender_is_dropped_and_its_link_is_suspected(
    worker: Worker, ingress: Connection
) -> None:
    ingress.post(FORGET, ALL_OF_P0)
    await done(worker, ingress)
    assert (worker.did, worker.convicted) == ([ALL_OF_P0], ["p0"])


async def test_whole_cache_is_emptied_if_nobody_knows_what_came_from_the_lender(
    worker: Worker, ingress: Connection
) -> None:
    worker.knows_origins = False
    ingress.post(FORGET, ALL_OF_P0)
    await done(worker, ingress)
    assert (worker.did, worker.failures) == ([ALL_OF_P0, None], [])


async def test_worker_that_cannot_drop_wrong_blocks_is_replaced(worker: Worker, ingress: Connection) -> None:
    worker.knows_origins = worker.can_empty = False
    ingress.post(FORGET, ONE)
    await done(worker, ingress)
    assert worker.failures == ["the engine died"]


async def test_failure_that_nobody_has_foreseen_empties_the_whole_cache(worker: Worker, ingress: Connection) -> None:
    worker.bug = RuntimeError("a bug")
    ingress.post(FORGET, ONE)
    await done(worker, ingress)
    assert (worker.did, worker.failures) == ([ONE, None], [])


async def test_failure_that_nobody_has_foreseen_keeps_no_other_wish_from_being_worked_on(
    worker: Worker, ingress: Connection
) -> None:
    worker.gate.clear()
    worker.bug = RuntimeError("a bug")
    ingress.post(FORGET, None)
    await asyncio.wait_for(worker.began.wait(), 5)
    ingress.post(FORGET, ALL_OF_P0)
    await ingress.call(ANSWER, None)
    worker.gate.set()
    await done(worker, ingress)
    assert worker.did == [None, ALL_OF_P0]
    assert len(worker.failures) == 1, "the worker is replaced: its cache may still have wrong blocks"


async def test_many_wishes_at_once_cost_no_more_than_a_few(worker: Worker, ingress: Connection) -> None:
    worker.gate.clear()
    ingress.post(FORGET, ONE)
    await asyncio.wait_for(worker.began.wait(), 5)
    for _ in range(100):
        ingress.post(FORGET, ALL_OF_P0)
    for _ in range(100):
        ingress.post(FORGET, None)
        ingress.post(FORGET, ALL_OF_P0)
    await ingress.call(ANSWER, None)
    worker.gate.set()
    await done(worker, ingress)
    assert worker.did[0] == ONE
    assert set(worker.did[1:]) <= {None, ALL_OF_P0}
    assert len(worker.did) <= 5

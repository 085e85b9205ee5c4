"""A Scheduler in a thread of its own, whose event loop can be stopped, and an ingress that places with it."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from cluster.clients.scheduler_client import SchedulerClient
from cluster.clients.worker_client import WorkerConnections
from cluster.messages.ids import Address, Path, Pool, RequestId, WorkerId
from cluster.messages.placement import Placement, PlacementRequest
from cluster.messages.reports import WorkerLoad, WorkerReport
from cluster.messages.scheduler_events import RequestClosed
from cluster.rpc.listener import Listener
from cluster.scheduler_registry import SchedulerRecord
from cluster.slo import SloConfig
from router.scheduler_service import SchedulerService
from router.session.fallback_placement import FallbackPlacement
from router.session.scheduler_failover import SchedulerFailover
from router.state import RouterState

T = TypeVar("T")

MAX_REQUESTS = 32
REPORT_S = 0.1
START_S = 10.0


class SchedulerProcess:
    """The real service of the Scheduler behind a real listener, and one idle decode worker that reports."""

    def __init__(self, epoch: int = 1) -> None:
        self.epoch = epoch
        self.state: RouterState
        self.listener: Listener
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._reporting: asyncio.Task[None]
        self.run(self._start())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """On the Scheduler's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_S)

    def pause(self, seconds: float) -> None:
        """The loop does nothing for so long, from now on."""
        self._loop.call_soon_threadsafe(threading.Event().wait, seconds)

    def cut(self) -> None:
        """Every connection ends at once, with what is on its way."""
        self._loop.call_soon_threadsafe(self._cut)

    def kill(self) -> None:
        self.run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_S)
        self._loop.close()

    @property
    def num_charged(self) -> int:
        return self.run(self._count())

    async def _start(self) -> None:
        self.state = RouterState()
        self.service = SchedulerService(self.state)
        self.listener = await Listener.start("127.0.0.1", self.service.service)
        self.record = SchedulerRecord(epoch=self.epoch, address=self.listener.address, node="n0")
        self._reporting = asyncio.create_task(self._report())

    async def _report(self) -> None:
        while True:
            self.service.pending.report(
                WorkerReport(
                    worker=WorkerId("d0"),
                    pool=Pool.DECODE,
                    address=Address("127.0.0.1", 1, "70726f63657373"),
                    load=WorkerLoad(),
                    max_requests=MAX_REQUESTS,
                )
            )
            await asyncio.sleep(REPORT_S)

    async def _count(self) -> int:
        self.state.validate()
        return sum(worker.num_placed for worker in self.state.view(self._loop.time()).workers)

    def _cut(self) -> None:
        for connection in list(self.listener._connections):
            assert connection._transport is not None
            connection._transport.abort()

    async def _end(self) -> None:
        self._cut()
        await self.listener.close()
        self._reporting.cancel()
        await asyncio.wait([self._reporting])


class Ingress:
    """What an ingress has of the Scheduler. Its event loop is the test's."""

    def __init__(self) -> None:
        self.scheduler = SchedulerProcess()
        peer = SchedulerClient(self._find)
        self.scheduling = SchedulerFailover(peer, WorkerConnections(peer), FallbackPlacement(SloConfig()))
        self._number = 0

    async def place(self, number: int) -> list[RequestId]:
        """Place `number` requests, all on the worker."""
        return [await self._place_one() for _ in range(number)]

    async def _place_one(self) -> RequestId:
        self._number += 1
        request_id = RequestId(f"r{self._number}")
        request = PlacementRequest(request_id=request_id, num_prompt_tokens=50, path=Path.DECODE)
        answer = await self.scheduling.place(request)
        assert isinstance(answer, Placement), answer
        assert "away" not in answer.why
        return request_id

    def end(self, requests: list[RequestId]) -> None:
        for request_id in requests:
            self.scheduling.tell(RequestClosed(request_id=request_id, num_output_tokens=5))

    async def lose_connection(self) -> None:
        connection = self.scheduling._events.connection
        assert connection is not None
        self.scheduler.cut()
        await connection.lost.wait()
        assert self.scheduling._events.connection is None

    def restart_scheduler(self) -> None:
        self.scheduler.kill()
        self.scheduler = SchedulerProcess(self.scheduler.epoch + 1)

    def die(self) -> None:
        """Its connection ends, and it does not come back."""
        self.scheduling.close()
        assert self.scheduling._events.connection is not None
        self.scheduling._events.connection.close()

    async def _find(self) -> SchedulerRecord:
        return self.scheduler.record


async def until(is_so: Callable[[], bool], timeout_s: float) -> None:
    async with asyncio.timeout(timeout_s):
        while not is_so():  # noqa: ASYNC110  # what happens in the Scheduler's thread sets no event here
            await asyncio.sleep(0.02)

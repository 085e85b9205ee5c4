"""Real Scheduler processes that stand still, are killed, or run side by side: no room is lost, and all peers end at the
newest one.
"""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from cluster.clients import scheduler_client
from cluster.clients.scheduler_client import SchedulerClient
from cluster.clients.scheduler_finder import SchedulerFinder
from cluster.clients.worker_client import WorkerConnections
from cluster.errors import WorkerUnreachable
from cluster.messages.ids import Address, Pool, RequestId, WorkerId
from cluster.messages.ids import Path as RequestPath
from cluster.messages.placement import Placement, PlacementRequest
from cluster.messages.reports import WorkerLoad, WorkerReport
from cluster.messages.scheduler_events import RequestClosed
from cluster.messages.views import ClusterView
from cluster.repository import REPO_ROOT
from cluster.scheduler_registry import SchedulerRecord, SchedulerRegistry
from cluster.slo import SloConfig
from router.session.fallback_placement import FallbackPlacement
from router.session.scheduler_failover import SchedulerFailover
from tests.hostile.core.scheduler_child import FolderStore

ROOM = 16
"""Requests that a worker takes."""
SETTLED_S = 20.0
FOLLOW_S = 0.5


class SchedulerChild:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: asyncio.subprocess.Process

    async def start(self) -> "SchedulerChild":
        command = (sys.executable, "-m", "tests.hostile.core.scheduler_child", str(self._folder))
        self._process = await asyncio.create_subprocess_exec(
            *command, cwd=REPO_ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        assert self._process.stdout is not None
        assert await self._process.stdout.readline() == b"serving\n"
        return self

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def ended(self) -> int:
        """The exit status of a Scheduler that ends by itself."""
        async with asyncio.timeout(SETTLED_S):
            return await self._process.wait()

    async def kill(self) -> None:
        if self._process.returncode is None:
            self.signal(signal.SIGCONT)
            self._process.kill()
            await self._process.wait()


class Worker:
    """Reports what runs on it to the Scheduler that it finds."""

    def __init__(self, name: str, find: "Finder") -> None:
        self.name = WorkerId(name)
        self.running: set[RequestId] = set()
        self._client = SchedulerClient(find)
        self.num_reports = 0
        self.reporting = asyncio.create_task(self._report_forever())

    async def _report_forever(self) -> None:
        names = False
        while True:
            report = WorkerReport(
                worker=self.name,
                pool=Pool.DECODE,
                address=Address("127.0.0.1", 1, "70" * 16),
                load=WorkerLoad(num_running=len(self.running)),
                max_requests=ROOM,
                requests=list(self.running) if names else None,
            )
            try:
                names = (await self._client.report(report)).wants_requests
                self.num_reports += 1
            except WorkerUnreachable:
                names = False
            await asyncio.sleep(0.1)


class Finder:
    """What one process knows of the registry. It may be cut off from it, and then knows what it knew before."""

    def __init__(self, registry: SchedulerRegistry) -> None:
        self._registry = registry
        self._known: SchedulerRecord | None = None
        self.is_cut_off = False
        self._finder = SchedulerFinder(self._read)

    async def __call__(self) -> SchedulerRecord:
        return await self._finder.newest()

    def _read(self) -> SchedulerRecord | None:
        if not self.is_cut_off:
            self._known = self._registry.newest()
        return self._known


class Ingress:
    def __init__(self, find: Finder, workers: dict[WorkerId, Worker]) -> None:
        self._workers = workers
        client = SchedulerClient(find)
        self.scheduling = SchedulerFailover(client, WorkerConnections(client), FallbackPlacement(SloConfig()))
        self._open: dict[RequestId, Worker] = {}
        self._number = 0
        self.num_placed_alone = 0

    async def place(self, number: int) -> None:
        for _ in range(number):
            self._number += 1
            request = PlacementRequest(
                request_id=RequestId(f"{id(self)}-{self._number}"), num_prompt_tokens=50, path=RequestPath.DECODE
            )
            answer = await self.scheduling.place(request)
            assert isinstance(answer, Placement), answer
            self.num_placed_alone += "away" in answer.why
            worker = self._workers[answer.generating]
            worker.running.add(request.request_id)
            self._open[request.request_id] = worker

    def end(self) -> None:
        """All requests are over."""
        for request_id, worker in self._open.items():
            worker.running.discard(request_id)
            self.scheduling.tell(RequestClosed(request_id=request_id, num_output_tokens=5))
        self._open.clear()


class Cluster:
    """Two ingresses and two workers. The first of each can be cut off from the registry."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.registry = SchedulerRegistry(FolderStore(folder))
        self.finders = [Finder(self.registry), Finder(self.registry)]
        self.workers = {w.name: w for w in (Worker("d0", self.finders[0]), Worker("d1", self.finders[1]))}
        self.ingresses = [Ingress(find, self.workers) for find in self.finders]
        self._observer = SchedulerClient(Finder(self.registry))
        self.schedulers: list[SchedulerChild] = []

    async def start_scheduler(self) -> SchedulerChild:
        self.schedulers.append(await SchedulerChild(self.folder).start())
        return self.schedulers[-1]

    async def settled(self) -> None:
        """Everybody is at the newest Scheduler, which knows both workers."""
        for ingress in self.ingresses:
            await until(ingress.scheduling._is_back.is_set)
        await self._seen(lambda view: len(view.workers) == 2)

    async def all_room_is_free(self) -> None:
        """As the newest Scheduler sees it, and as it places."""
        for worker in self.workers.values():
            num_before = worker.num_reports
            await until(lambda: worker.num_reports > num_before + 1)  # noqa: B023
        await self._seen(lambda view: len(view.workers) == 2 and not any(w.num_placed for w in view.workers))
        for ingress in self.ingresses:
            ingress.num_placed_alone = 0
            await ingress.place(ROOM)
        await self._seen(lambda view: [w.num_placed for w in view.workers] == [ROOM, ROOM])
        for ingress in self.ingresses:
            assert not ingress.num_placed_alone
            ingress.end()
        await self._seen(lambda view: not any(w.num_placed for w in view.workers))

    async def close(self) -> None:
        for ingress in self.ingresses:
            ingress.scheduling.close()
        for worker in self.workers.values():
            worker.reporting.cancel()
        for scheduler in self.schedulers:
            await scheduler.kill()

    async def _seen(self, is_so: Callable[[ClusterView], bool]) -> None:
        async with asyncio.timeout(SETTLED_S):
            while True:
                try:
                    if is_so(await self._observer.view()):
                        return
                except WorkerUnreachable:
                    pass
                await asyncio.sleep(0.05)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(SETTLED_S):
        while not is_so():  # noqa: ASYNC110  # what happens in other processes sets no event here
            await asyncio.sleep(0.02)


@pytest_asyncio.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    monkeypatch.setattr(scheduler_client, "FOLLOW_S", FOLLOW_S)
    started = Cluster(tmp_path)
    try:
        await started.start_scheduler()
        await started.settled()
        yield started
    finally:
        await started.close()


@pytest.mark.parametrize("pause_s", [0.5, 5.0])
async def test_scheduler_that_stands_still_while_requests_end_keeps_no_room(cluster: Cluster, pause_s: float) -> None:
    for ingress in cluster.ingresses:
        await ingress.place(ROOM)
    cluster.schedulers[0].signal(signal.SIGSTOP)
    for ingress in cluster.ingresses:
        ingress.end()
    await asyncio.sleep(pause_s)
    cluster.schedulers[0].signal(signal.SIGCONT)
    await cluster.all_room_is_free()


async def test_scheduler_that_is_killed_and_replaced_keeps_no_room(cluster: Cluster) -> None:
    for ingress in cluster.ingresses:
        await ingress.place(ROOM // 2)
    await cluster.schedulers[0].kill()
    cluster.ingresses[0].end()
    await cluster.start_scheduler()
    await cluster.settled()
    cluster.ingresses[1].end()
    await cluster.all_room_is_free()


async def test_two_schedulers_side_by_side_become_one_and_keep_no_room(cluster: Cluster) -> None:
    """The old one stands still, and half of the cluster cannot read the registry: this half goes on with the old one,
    until the other half, or the registry, is heard of.
    """
    cluster.finders[0].is_cut_off = True
    for ingress in cluster.ingresses:
        await ingress.place(ROOM // 4)
    cluster.schedulers[0].signal(signal.SIGSTOP)
    await cluster.start_scheduler()
    cluster.ingresses[0].end()
    await asyncio.sleep(1.0)
    cluster.schedulers[0].signal(signal.SIGCONT)
    assert await cluster.schedulers[0].ended() == 0
    cluster.finders[0].is_cut_off = False
    await cluster.settled()
    cluster.ingresses[1].end()
    await cluster.all_room_is_free()


async def test_scheduler_that_cannot_read_the_registry_is_told_by_a_peer(cluster: Cluster) -> None:
    elsewhere = cluster.folder.with_name("elsewhere")
    cluster.folder.rename(elsewhere)
    cluster.folder.mkdir()
    # The old Scheduler writes into the new folder as it finds nothing there: its record is the older one for the peers.
    newer = await SchedulerChild(elsewhere).start()
    cluster.schedulers.append(newer)
    for finder in cluster.finders:
        finder._registry = SchedulerRegistry(FolderStore(elsewhere))
    assert await cluster.schedulers[0].ended() == 0
    cluster._observer = SchedulerClient(cluster.finders[0])
    await cluster.settled()
    await cluster.all_room_is_free()

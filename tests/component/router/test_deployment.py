"""The Scheduler as Serve runs it, on a real listener: what it does once a newer one has taken over."""

import asyncio
from pathlib import Path

import pytest

from cluster.clients.scheduler_client import SchedulerClient
from cluster.config.network import NetworkConfig
from cluster.config.scheduler import SchedulerConfig, StimulusLogConfig
from cluster.messages.ids import Address, IngressId, WorkerId
from cluster.messages.operations import DrainAsk, WorkerCondition
from cluster.messages.placement import Placement
from cluster.messages.scheduler_events import OpenRequests
from cluster.network.interface import Interface
from cluster.rpc.connection import Connection, ConnectionLost, NobodyThere, Service
from cluster.rpc.listener import connect
from cluster.rpc.protocol import OPEN_REQUESTS, PLACE, REPLACED
from cluster.scheduler_registry import SchedulerRecord, SchedulerRegistry
from cluster.worker_drains import WorkerDrains
from router import deployment, epoch_watch
from router.deployment import Scheduler
from router.recording.records import PlacementAsked
from router.replay.log_reader import log_files, records_of
from tests.expected import present
from tests.unit.clusters import SLO, a_report, ask
from tests.unit.factories import an_address
from tests.unit.memory_store import MemoryStore


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> SchedulerRegistry:
    """What Ray would keep. The rest of the process stays as it is."""
    registry = SchedulerRegistry(MemoryStore())
    monkeypatch.setattr(deployment, "scheduler_registry", lambda cell: registry)
    drains = MemoryStore()
    monkeypatch.setattr(deployment, "worker_drains", lambda epoch, cell: WorkerDrains(drains, epoch))
    monkeypatch.setattr(deployment, "own_interface_of", lambda host: Interface(present(host), None))
    monkeypatch.setattr(deployment, "own_node", lambda: "n0")
    monkeypatch.setattr(deployment, "own_worker_id", lambda: WorkerId("s0"))
    for name in ("join_cluster", "set_up_logging", "collect_rarely"):
        monkeypatch.setattr(deployment, name, lambda *_, **__: None)
    return registry


async def started() -> Scheduler:
    scheduler = Scheduler.__new__(Scheduler)
    await scheduler.__init__(SLO, SchedulerConfig(), NetworkConfig(host="127.0.0.1"))  # type: ignore[misc]  # as Serve does
    return scheduler


def num_watches() -> int:
    return sum("watch_event_loop" in repr(task.get_coro()) for task in asyncio.all_tasks())


async def an_ingress(address: Address) -> Connection:
    connection = await connect(address, Service())
    connection.post(OPEN_REQUESTS, OpenRequests(ingress=IngressId("one"), connection=1, requests=[]))
    return connection


async def is_out_of_service(scheduler: Scheduler, address: Address, ingress: Connection) -> None:
    """Its peers look for the newest Scheduler, nobody reaches this one, and Serve ends it."""
    async with asyncio.timeout(5):
        await ingress.lost.wait()
    with pytest.raises(ConnectionLost):
        await ingress.call(PLACE, ask("after", 100))
    with pytest.raises(NobodyThere):
        await connect(address, Service())
    with pytest.raises(RuntimeError, match="newer Scheduler"):
        await scheduler.check_health()


async def test_scheduler_that_a_peer_tells_of_a_newer_one_ends_its_service(registry: SchedulerRegistry) -> None:
    scheduler = await started()
    own = present(registry.newest())
    worker, ingress = SchedulerClient(lambda: _found(own)), await an_ingress(own.address)
    await worker.report(a_report("d0"))
    before = await ingress.call(PLACE, ask("before", 100))
    assert isinstance(before, Placement)
    ingress.post(REPLACED, own.epoch)
    still = await ingress.call(PLACE, ask("still", 100))
    assert isinstance(still, Placement)
    await scheduler.check_health()
    ingress.post(REPLACED, own.epoch + 1)
    await is_out_of_service(scheduler, own.address, ingress)


async def test_scheduler_that_finds_a_newer_one_lets_go_of_the_requests_that_wait(
    registry: SchedulerRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epoch_watch, "WATCH_S", 0.01)
    scheduler = await started()
    own = present(registry.newest())
    ingress = await an_ingress(own.address)
    waiting = asyncio.create_task(ingress.call(PLACE, ask("waits", 100)))
    await scheduler.check_health()
    registry.claim(an_address("newer"), "n1")
    async with asyncio.timeout(5):
        with pytest.raises(ConnectionLost):
            await waiting
    await is_out_of_service(scheduler, own.address, ingress)


async def test_scheduler_whose_config_says_so_writes_what_it_decides(
    registry: SchedulerRegistry, tmp_path: Path
) -> None:
    config = SchedulerConfig(stimulus_log=StimulusLogConfig(folder=str(tmp_path / "stimuli")))
    scheduler = Scheduler.__new__(Scheduler)
    await scheduler.__init__(SLO, config, NetworkConfig(host="127.0.0.1"))  # type: ignore[misc]  # as Serve does
    own = present(registry.newest())
    worker, ingress = SchedulerClient(lambda: _found(own)), await an_ingress(own.address)
    await worker.report(a_report("d0"))
    answer = await ingress.call(PLACE, ask("r", 100))
    ingress.post(REPLACED, own.epoch + 1)
    await is_out_of_service(scheduler, own.address, ingress)
    assert num_watches() == 1
    scheduler.__del__()
    await asyncio.sleep(0)
    assert num_watches() == 0, "the event loop is not watched any more"
    (file,), _ = log_files(tmp_path / "stimuli")
    assert file.header.epoch == own.epoch
    asked = [record for record in records_of(file) if isinstance(record, PlacementAsked)]
    assert [record.answer for record in asked] == [answer]


async def test_drain_that_one_scheduler_was_told_is_known_to_the_next(registry: SchedulerRegistry) -> None:
    old = await started()
    first = present(registry.newest())
    client = SchedulerClient(lambda: _found(first))
    for worker in ("d0", "d1"):
        await client.report(a_report(worker))
    await client.drain(DrainAsk(worker=WorkerId("d0"), drains=True))
    new = await started()
    second = present(registry.newest())
    client = SchedulerClient(lambda: _found(second))
    await client.report(a_report("d0"))
    status = await client.status()
    assert status.epoch == second.epoch > first.epoch
    assert [(worker.worker, worker.condition) for worker in status.workers] == [("d0", WorkerCondition.DRAINING)]
    for scheduler in (old, new):
        await scheduler._listener.close()


async def _found(record: SchedulerRecord) -> SchedulerRecord:
    return record

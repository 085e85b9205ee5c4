"""The Scheduler's side of its connections, on a real one."""

import asyncio

from cluster.clients.scheduler_client import SchedulerClient
from cluster.messages.scheduler_events import WorkerLeft
from cluster.rpc.listener import Listener
from cluster.scheduler_registry import SchedulerRecord
from router.scheduler_service import SchedulerService
from router.state import RouterState
from tests.unit.factories import a_decode_report, a_scheduler


async def test_report_that_is_read_together_with_the_end_of_its_worker_does_not_bring_it_back() -> None:
    """The Scheduler was busy while both came."""
    service = SchedulerService(RouterState())
    listener = await Listener.start("127.0.0.1", service.service)
    peer = SchedulerClient(lambda: _found(listener))
    report = a_decode_report("d0")
    await peer.report(report)
    assert [worker.worker for worker in (await peer.view()).workers] == ["d0"]
    await asyncio.gather(peer.report(report), peer.say_leaving(WorkerLeft(worker=report.worker, engine_silent_s=5.0)))
    assert (await peer.view()).workers == []
    await listener.close()


async def _found(listener: Listener) -> SchedulerRecord:
    return a_scheduler(listener.address)

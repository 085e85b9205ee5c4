"""The Scheduler's side of its connections, on a real one."""

import asyncio

import msgspec

from cluster.clients.scheduler_client import SchedulerClient
from cluster.messages.ids import Address
from cluster.messages.kv_events import KEY_BYTES, KvChange, KvEvents, KvTier
from cluster.messages.scheduler_events import WorkerLeft
from cluster.rpc.listener import Listener
from router.prefixes.kv_backlog import SLICE_BLOCKS
from router.scheduler_service import SchedulerService
from router.state import RouterState
from tests.unit.factories import a_decode_report


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


async def test_kv_events_wait_for_other_work_and_are_not_taken_for_lost_meanwhile() -> None:
    """A snapshot of many blocks would hold up placements, and a report may be read together with it."""
    state = RouterState()
    listener = await Listener.start("127.0.0.1", SchedulerService(state).service)
    peer = SchedulerClient(lambda: _found(listener))
    report = msgspec.structs.replace(a_decode_report("d0"), kv_events_through=0)
    assert (await peer.report(report)).wants_kv_snapshot
    keys = [number.to_bytes(KEY_BYTES, "big") for number in range(4 * SLICE_BLOCKS)]
    parts = [keys[at : at + SLICE_BLOCKS] for at in range(0, len(keys), SLICE_BLOCKS)]
    await peer.send_kv_events(
        [
            KvEvents(report.worker, number, number == 1, True, [KvChange(KvTier.GPU, True, part)], number < len(parts))
            for number, part in enumerate(parts, 1)
        ]
    )
    reply = await peer.report(msgspec.structs.replace(report, kv_events_through=len(parts)))
    assert state.index.num_blocks < len(keys)
    assert not reply.wants_kv_snapshot
    for _ in range(len(parts) + 1):  # each turn of the event loop takes a slice
        await asyncio.sleep(0)
    assert state.index.is_exact(report.worker)
    assert state.index.num_blocks == len(keys)
    assert not (await peer.report(msgspec.structs.replace(report, kv_events_through=len(parts)))).wants_kv_snapshot
    await listener.close()


async def _found(listener: Listener) -> Address:
    return listener.address

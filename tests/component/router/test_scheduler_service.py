"""The Scheduler's side of its connections, on a real one."""

import asyncio
import logging
from collections.abc import Callable

import msgspec
import pytest
from prometheus_client import REGISTRY

from cluster.clients.scheduler_client import SchedulerClient
from cluster.clients.worker_client import WorkerConnections
from cluster.messages.ids import IngressId, RequestId, SloClass, WorkerId
from cluster.messages.kv_events import KEY_BYTES, KvChange, KvEvents, KvTier
from cluster.messages.kv_format import KvFormat
from cluster.messages.scheduler_events import Pause, WorkerLeft, WorkerLost
from cluster.rpc.listener import Listener
from cluster.scheduler_registry import SchedulerRecord
from cluster.slo import SloConfig
from router.deployment import export
from router.prefixes.kv_backlog import MAX_MESSAGE_BLOCKS, SLICE_BLOCKS
from router.scheduler_service import SchedulerService
from router.session.fallback_placement import FallbackPlacement
from router.session.scheduler_failover import SchedulerFailover
from router.state import RouterState
from router.trust.suspected_workers import LEAST_HOLD_S
from tests.unit.factories import a_decode_report, a_prefill_report, a_scheduler


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


@pytest.mark.parametrize(("engine_silent_s", "number"), [(None, 0), (5.0, 1)])
async def test_worker_that_ends_with_a_hung_engine_is_counted_as_lost(
    engine_silent_s: float | None, number: int
) -> None:
    listener = await Listener.start("127.0.0.1", SchedulerService(RouterState()).service)
    peer, labels = SchedulerClient(lambda: _found(listener)), {"pool": "decode"}
    await peer.report(report := a_decode_report("d0"))
    before = REGISTRY.get_sample_value("baton_workers_lost_total", labels) or 0.0
    await peer.say_leaving(WorkerLeft(worker=report.worker, engine_silent_s=engine_silent_s))
    assert REGISTRY.get_sample_value("baton_workers_lost_total", labels) == before + number
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


async def test_kv_events_that_cannot_be_taken_end_nothing_and_are_asked_for_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = RouterState()
    service = SchedulerService(state)
    listener = await Listener.start("127.0.0.1", service.service)
    peer = SchedulerClient(lambda: _found(listener))
    bad, good = (msgspec.structs.replace(a_decode_report(name), kv_events_through=1) for name in ("d0", "d1"))
    for report in (bad, good):
        await peer.report(report)
    take = service.pending.kv_events

    def fails_once(events: KvEvents) -> bool:
        monkeypatch.setattr(service.pending, "kv_events", take)
        take(events)
        raise RuntimeError("a defect")

    monkeypatch.setattr(service.pending, "kv_events", fails_once)
    keys = [number.to_bytes(KEY_BYTES, "big") for number in range(SLICE_BLOCKS)]
    whole = [KvChange(KvTier.GPU, True, keys)]
    await peer.send_kv_events([KvEvents(report.worker, 1, True, True, whole) for report in (bad, good)])
    await wait_until(lambda: state.index.is_exact(good.worker))
    assert not state.index.is_exact(bad.worker)
    assert (await peer.report(bad)).wants_kv_snapshot
    await peer.send_kv_events([KvEvents(bad.worker, 2, True, True, whole)])
    await wait_until(lambda: state.index.is_exact(bad.worker))
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == [
        "1 messages of KV events of worker d0 could not be taken"
    ]
    await listener.close()


async def test_messages_that_are_too_large_are_dropped_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    state = RouterState()
    listener = await Listener.start("127.0.0.1", SchedulerService(state).service)
    peer = SchedulerClient(lambda: _found(listener))
    report = a_decode_report("d0")
    await peer.report(report)
    keys = [number.to_bytes(KEY_BYTES, "big") for number in range(MAX_MESSAGE_BLOCKS)]
    huge = [KvChange(KvTier.GPU, True, keys)]
    await peer.send_kv_events([KvEvents(report.worker, number, True, True, huge) for number in (1, 2, 3)])
    assert (await peer.report(msgspec.structs.replace(report, kv_events_through=3))).wants_kv_snapshot
    assert state.index.num_blocks == 0
    dropped = [record.getMessage() for record in caplog.records if "dropped" in record.getMessage()]
    assert dropped == ["1 messages of KV events of worker d0 are dropped: too much is sent"]
    await listener.close()


async def test_index_is_swept_when_many_workers_have_left_though_no_kv_events_come() -> None:
    state = RouterState()
    listener = await Listener.start("127.0.0.1", SchedulerService(state).service)
    peer = SchedulerClient(lambda: _found(listener))
    for number in range(100):
        report = a_decode_report(f"d{number}")
        await peer.report(report)
        key = number.to_bytes(KEY_BYTES, "big")
        await peer.send_kv_events([KvEvents(report.worker, 1, True, True, [KvChange(KvTier.GPU, True, [key])])])
    await wait_until(lambda: state.index.num_blocks == 100)
    for number in range(1, 100):
        await peer.say_leaving(WorkerLeft(worker=a_decode_report(f"d{number}").worker))
    assert state.index.num_blocks == 100
    await peer.report(a_decode_report("d0"))
    await wait_until(lambda: state.index.num_blocks == 1)
    await listener.close()


async def test_ingress_is_asked_to_pause_its_request_and_another_one_hears_nothing() -> None:
    service = SchedulerService(RouterState())
    listener = await Listener.start("127.0.0.1", service.service)
    client = SchedulerClient(lambda: _found(listener))
    ingress = SchedulerFailover(client, WorkerConnections(client), FallbackPlacement(SloConfig()))
    attempts: list[int] = []
    ingress.when_to_pause(RequestId("r"), attempts.append)
    await wait_until(lambda: bool(service._ingresses._known))
    (known,) = service._ingresses._known
    num_asked = asked(SloClass.BATCH)
    for unreachable in (None, IngressId("gone")):
        service.pending.on_pause(unreachable, Pause(RequestId("r"), 7), SloClass.BATCH)
    service.pending.on_pause(known, Pause(RequestId("r"), 1), SloClass.BATCH)
    await client.queue()  # its answer is read after the pause
    assert attempts == [1]
    assert asked(SloClass.BATCH) == num_asked + 1
    ingress.close()
    await listener.close()


def asked(slo_class: SloClass) -> float:
    return REGISTRY.get_sample_value("baton_pauses_asked_total", {"slo_class": slo_class}) or 0.0


async def test_worker_that_an_ingress_cannot_reach_is_logged_and_shown_with_the_ingress(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "baton.scheduler")
    state, worker = RouterState(), WorkerId("d0")
    service = SchedulerService(state)
    listener = await Listener.start("127.0.0.1", service.service)
    client = SchedulerClient(lambda: _found(listener))
    state.handle(a_decode_report(worker), asyncio.get_running_loop().time())
    ingress = SchedulerFailover(client, WorkerConnections(client), FallbackPlacement(SloConfig()))
    await wait_until(lambda: bool(service._ingresses._known))
    (known,) = service._ingresses._known
    now = asyncio.get_running_loop().time()
    for _ in range(2):  # the second failure is of a request that was on its way
        ingress.tell(WorkerLost(worker=worker))
    await wait_until(lambda: bool(state.suspects.held(now)))
    (record,) = (record for record in caplog.records if "could not reach" in record.getMessage())
    message = record.getMessage()
    assert (record.levelname, known in message, worker in message, "127.0.0.1:" in message) == ("INFO", *[True] * 3)
    export(state, now)
    labels = {"ingress": known, "worker": worker}
    assert REGISTRY.get_sample_value("baton_hold_seconds", labels) == LEAST_HOLD_S
    export(state, now + 1 + LEAST_HOLD_S)
    assert REGISTRY.get_sample_value("baton_hold_seconds", labels) is None
    ingress.close()
    await listener.close()


async def _found(listener: Listener) -> SchedulerRecord:
    return a_scheduler(listener.address)


async def test_pools_that_cannot_hand_over_are_logged_once_and_shown(caplog: pytest.LogCaptureFixture) -> None:
    service = SchedulerService(RouterState())
    listener = await Listener.start("127.0.0.1", service.service)
    peer = SchedulerClient(lambda: _found(listener))
    for report, dtype in ((a_prefill_report("p0"), "bfloat16"), (a_decode_report("d0"), "float32")):
        kv_format = KvFormat(digest=dtype, settings=(("dtype", dtype),))
        shape = msgspec.structs.replace(report.shape, kv_format=kv_format)
        for _ in range(2):
            await peer.report(msgspec.structs.replace(report, shape=shape))
    why = "dtype is bfloat16 in the prefill pool and float32 in the decode pool"
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        f"some prefill and decode workers cannot hand over to each other: {why}"
    ]
    assert (await peer.roster(0)).mismatch == why
    await listener.close()


async def wait_until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10.0):
        while not is_so():  # noqa: ASYNC110  # what another connection does sets no event here
            await asyncio.sleep(0.01)

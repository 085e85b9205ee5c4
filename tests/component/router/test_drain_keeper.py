"""Drains of workers, as an operator asks for them, and over the end of the Scheduler process."""

import asyncio

import pytest

from cluster.errors import Conflict, NotFound, StateUnavailable
from cluster.messages.ids import WorkerId
from cluster.messages.operations import DrainAsk
from cluster.worker_drains import WorkerDrains
from router.drain_keeper import DrainKeeper
from router.state import RouterState
from tests.unit.clusters import SLO, a_report
from tests.unit.memory_store import MemoryStore

D0, D1 = WorkerId("d0"), WorkerId("d1")


def a_state() -> RouterState:
    state, now = RouterState(SLO), asyncio.get_running_loop().time()
    for worker in ("p0", "d0", "d1"):
        state.handle(a_report(worker), now)
    return state


def drain(worker: WorkerId, *, force: bool = False) -> DrainAsk:
    return DrainAsk(worker=worker, drains=True, force=force)


async def test_drain_outlives_the_scheduler_and_its_end_does_too() -> None:
    store, state = MemoryStore(), a_state()
    keeper = DrainKeeper(state, WorkerDrains(store))
    assert not (await keeper.change(drain(D0))).was_draining
    assert (await keeper.change(drain(D0))).was_draining
    successor = a_state()
    keeper = DrainKeeper(successor, WorkerDrains(store))
    assert successor.workers.drains.workers == {D0}
    assert (await keeper.change(DrainAsk(worker=D0, drains=False))).was_draining
    DrainKeeper(successor, WorkerDrains(store))
    assert successor.workers.drains.workers == frozenset()


async def test_worker_that_does_not_report_cannot_be_drained_and_a_drain_of_one_that_is_gone_can_be_undone() -> None:
    store = MemoryStore()
    keeper = DrainKeeper(a_state(), WorkerDrains(store))
    with pytest.raises(NotFound, match="d7"):
        await keeper.change(drain(WorkerId("d7")))
    WorkerDrains(store).write([WorkerId("d7")])
    state = a_state()
    await DrainKeeper(state, WorkerDrains(store)).change(DrainAsk(worker=WorkerId("d7"), drains=False))
    assert WorkerDrains(store).read() == []


async def test_last_worker_of_a_pool_is_drained_by_force_alone() -> None:
    state = a_state()
    keeper = DrainKeeper(state, WorkerDrains(MemoryStore()))
    await keeper.change(drain(D0))
    with pytest.raises(Conflict, match="last worker"):
        await keeper.change(drain(D1))
    await keeper.change(drain(D1, force=True))
    assert state.workers.drains.workers == {D0, D1}


async def test_worker_that_cannot_be_reached_does_not_count_as_another_one() -> None:
    state = a_state()
    state.disconnected(D1)
    with pytest.raises(Conflict):
        await DrainKeeper(state, WorkerDrains(MemoryStore())).change(drain(D0))


async def test_changes_at_the_same_time_forget_none() -> None:
    store, state = MemoryStore(), a_state()
    state.handle(a_report("d2"), asyncio.get_running_loop().time())
    keeper = DrainKeeper(state, WorkerDrains(store))
    await asyncio.gather(keeper.change(drain(D0)), keeper.change(drain(D1)))
    assert set(WorkerDrains(store).read()) == {D0, D1}


async def test_drain_that_cannot_be_stored_has_no_effect() -> None:
    """A successor would place on the worker again, and nobody would notice."""
    store, state = MemoryStore(), a_state()
    keeper = DrainKeeper(state, WorkerDrains(store))
    store.is_away = True
    with pytest.raises(StateUnavailable):
        await keeper.change(drain(D0))
    assert state.workers.drains.workers == frozenset()


@pytest.mark.parametrize("kept", [b"", b"\xc1", b"\x93\x01\x02\x03", b"\x80"])
async def test_store_with_anything_else_has_no_drains(kept: bytes) -> None:
    store = MemoryStore()
    store.values["draining"] = kept
    state = a_state()
    DrainKeeper(state, WorkerDrains(store))
    assert state.workers.drains.workers == frozenset()


async def test_scheduler_starts_while_the_store_is_away(caplog: pytest.LogCaptureFixture) -> None:
    store, state = MemoryStore(), a_state()
    store.is_away = True
    DrainKeeper(state, WorkerDrains(store))
    assert "which workers drain" in caplog.text

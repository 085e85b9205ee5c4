"""Drains of workers, as an operator asks for them, and over the end of the Scheduler process."""

import asyncio
import sys
from collections.abc import Callable

import pytest

from cluster.errors import Conflict, NotFound, StateUnavailable
from cluster.messages.ids import WorkerId
from cluster.messages.operations import DrainAsk
from cluster.scheduler_registry import SchedulerRegistry
from cluster.worker_drains import WorkerDrains
from router import drain_keeper
from router.drain_keeper import DrainKeeper
from router.state import RouterState
from tests.unit.clusters import SLO, a_report
from tests.unit.factories import an_address
from tests.unit.memory_store import MemoryStore

D0, D1 = WorkerId("d0"), WorkerId("d1")


def a_state() -> RouterState:
    state, now = RouterState(SLO), asyncio.get_running_loop().time()
    for worker in ("p0", "d0", "d1"):
        state.handle(a_report(worker), now)
    return state


def keeper_of(state: RouterState, store: MemoryStore) -> DrainKeeper:
    """Of the newest Scheduler."""
    registry = SchedulerRegistry(store)
    return DrainKeeper(state, WorkerDrains(store, registry.claim(an_address("s"), "n0").epoch), registry)


def stored(store: MemoryStore) -> list[WorkerId]:
    """What the next Scheduler finds."""
    return WorkerDrains(store, sys.maxsize).take_over()


def drain(worker: WorkerId, *, force: bool = False) -> DrainAsk:
    return DrainAsk(worker=worker, drains=True, force=force)


async def test_drain_outlives_the_scheduler_and_its_end_does_too() -> None:
    store, state = MemoryStore(), a_state()
    keeper = keeper_of(state, store)
    assert not (await keeper.change(drain(D0))).was_draining
    assert (await keeper.change(drain(D0))).was_draining
    successor = a_state()
    keeper = keeper_of(successor, store)
    assert successor.workers.drains.workers == {D0}
    assert (await keeper.change(DrainAsk(worker=D0, drains=False))).was_draining
    keeper_of(successor, store)
    assert successor.workers.drains.workers == frozenset()


async def test_worker_that_does_not_report_cannot_be_drained_and_a_drain_of_one_that_is_gone_can_be_undone() -> None:
    store = MemoryStore()
    keeper = keeper_of(a_state(), store)
    with pytest.raises(NotFound, match="d7"):
        await keeper.change(drain(WorkerId("d7")))
    store, state = MemoryStore(), a_state()
    WorkerDrains(store, 1).write([WorkerId("d7")])
    await keeper_of(state, store).change(DrainAsk(worker=WorkerId("d7"), drains=False))
    assert stored(store) == []


async def test_last_worker_of_a_pool_is_drained_by_force_alone() -> None:
    state = a_state()
    keeper = keeper_of(state, MemoryStore())
    await keeper.change(drain(D0))
    with pytest.raises(Conflict, match="last worker"):
        await keeper.change(drain(D1))
    await keeper.change(drain(D1, force=True))
    assert state.workers.drains.workers == {D0, D1}


async def test_worker_that_cannot_be_reached_does_not_count_as_another_one() -> None:
    state = a_state()
    state.disconnected(D1)
    with pytest.raises(Conflict):
        await keeper_of(state, MemoryStore()).change(drain(D0))


async def test_changes_at_the_same_time_forget_none() -> None:
    store, state = MemoryStore(), a_state()
    state.handle(a_report("d2"), asyncio.get_running_loop().time())
    keeper = keeper_of(state, store)
    await asyncio.gather(keeper.change(drain(D0)), keeper.change(drain(D1)))
    assert set(stored(store)) == {D0, D1}


async def test_drain_that_cannot_be_stored_has_no_effect() -> None:
    """A successor would place on the worker again, and nobody would notice."""
    store, state = MemoryStore(), a_state()
    keeper = keeper_of(state, store)
    store.is_away = True
    with pytest.raises(StateUnavailable):
        await keeper.change(drain(D0))
    assert state.workers.drains.workers == frozenset()


@pytest.mark.parametrize("kept", [b"", b"\xc1", b"\x93\x01\x02\x03", b"\x80", b"\x91\xa2\xff\xfe"])
async def test_store_with_anything_else_has_no_drains(kept: bytes) -> None:
    store = MemoryStore()
    store.values["draining-1"] = kept
    state = a_state()
    keeper_of(state, store)
    assert state.workers.drains.workers == frozenset()


async def test_scheduler_starts_while_the_store_is_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It changes nothing until the store has told which workers drain: a change would overwrite them."""
    store, state = MemoryStore(), a_state()
    WorkerDrains(store, 1).write([D0])
    store.is_away = True
    keeper = DrainKeeper(state, WorkerDrains(store, 2), SchedulerRegistry(MemoryStore()))
    assert "which workers drain" in caplog.text
    with pytest.raises(StateUnavailable, match="which workers drain"):
        await keeper.change(drain(WorkerId("p0"), force=True))
    store.is_away = False
    await keeper.change(drain(WorkerId("p0"), force=True))
    assert stored(store) == [D0, "p0"]
    assert state.workers.drains.workers == {D0, "p0"}
    keeper.close()


async def test_store_that_was_away_at_the_start_is_read_again_without_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain_keeper, "RETRY_AFTER_S", 0.01)
    store, state = MemoryStore(), a_state()
    WorkerDrains(store, 1).write([D0])
    store.is_away = True
    DrainKeeper(state, WorkerDrains(store, 2), SchedulerRegistry(MemoryStore()))
    await asyncio.sleep(0.03)
    assert state.workers.drains.workers == frozenset()
    store.is_away = False
    async with asyncio.timeout(5):
        while not state.workers.drains.workers:  # noqa: ASYNC110  # the keeper sets no event
            await asyncio.sleep(0.01)
    assert state.workers.drains.workers == {D0}


@pytest.mark.parametrize("is_late", [False, True])
async def test_scheduler_that_was_replaced_takes_no_change(*, is_late: bool) -> None:
    """Its successor has read the store. `is_late`: it did so just before the change was written."""
    store, state = MemoryStore(), a_state()
    keeper = keeper_of(state, store)
    successor, of_successor = list[DrainKeeper](), a_state()

    def replace() -> None:
        store.before_put = lambda: None
        successor.append(keeper_of(of_successor, store))

    if is_late:
        store.before_put = replace
    else:
        replace()
    with pytest.raises(StateUnavailable, match="newer Scheduler"):
        await keeper.change(drain(D0))
    assert successor
    assert state.workers.drains.workers == frozenset()


class SteppedStore(MemoryStore):
    """Does something else before a step. `before`: what, and before which step, counted from 0."""

    def __init__(self) -> None:
        super().__init__()
        self.before: tuple[int, Callable[[], object]] | None = None

    def _require(self) -> None:
        super()._require()
        if self.before is not None:
            number, something = self.before
            self.before = (number - 1, something) if number else None
            if not number:
                something()


WRITE, STEPS_OF_A_CHANGE = 2, 5
"""A look at the registry takes two steps, before the write and after it."""


@pytest.mark.parametrize("step", range(STEPS_OF_A_CHANGE + 1))
async def test_replaced_scheduler_overwrites_nothing_of_its_successor(step: int) -> None:
    """The successor starts, and makes a change, between two steps of the change of the other one."""
    store, state, of_successor = SteppedStore(), a_state(), a_state()
    for one in (state, of_successor):
        one.handle(a_report("d2"), asyncio.get_running_loop().time())
    keeper, loop = keeper_of(state, store), asyncio.get_running_loop()

    def replace() -> None:
        successor = keeper_of(of_successor, store)
        asyncio.run_coroutine_threadsafe(successor.change(drain(D1)), loop).result(10.0)

    store.before = step, replace
    try:
        await keeper.change(drain(D0))
        told = {D0}
    except StateUnavailable:
        told = set()
    assert state.workers.drains.workers == told
    if store.before is not None:  # the change had ended
        store.before = None
        await asyncio.to_thread(replace)
    # The successor may have read a change that is refused because its Scheduler was replaced just after the write
    assert of_successor.workers.drains.workers == set(stored(store)) == ({D0, D1} if step > WRITE else {D1})
    assert bool(told) == (step == STEPS_OF_A_CHANGE)


async def test_worker_in_quarantine_does_not_count_as_another_one_unless_all_are() -> None:
    state, now = a_state(), asyncio.get_running_loop().time()
    keeper = keeper_of(state, MemoryStore())
    state.quarantined.told({D1: "wrong"}, now)
    with pytest.raises(Conflict):
        await keeper.change(drain(D0))
    state.quarantined.told({D0: "wrong", D1: "wrong"}, now)
    await keeper.change(drain(D0))


async def test_worker_that_never_reported_is_unknown_also_to_the_end_of_a_drain() -> None:
    """Another cell may have it."""
    with pytest.raises(NotFound):
        await keeper_of(a_state(), MemoryStore()).change(DrainAsk(worker=WorkerId("d7"), drains=False))

import asyncio

import pytest

from cluster.errors import WorkerUnreachable
from cluster.messages.ids import WorkerId
from cluster.worker import watchdog as engine_watch
from cluster.worker.watchdog import Watchdog, show_life

STALL_S = 0.05


class Engine:
    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.is_dead = False
        self.num_given_up = 0
        self.num_stalls = 0
        self.stalled = asyncio.Event()

    async def answer(self) -> None:
        await self.answers.wait()

    async def check_health(self) -> None:
        if self.is_dead:
            raise RuntimeError("the engine core is dead")

    async def give_up_running(self) -> None:
        self.num_given_up += 1

    async def on_stall(self) -> None:
        self.num_stalls += 1
        self.stalled.set()


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_watch, "ASK_INTERVAL_S", 0.01)


async def test_engine_that_answers_is_left_alone() -> None:
    engine = Engine()
    engine.answers.set()
    watching = asyncio.create_task(Watchdog(engine, STALL_S, engine.on_stall).run())
    await asyncio.sleep(3 * STALL_S)
    assert (engine.num_given_up, engine.num_stalls, watching.done()) == (0, 0, False)
    watching.cancel()


async def test_engine_that_stalls_loses_its_requests_until_it_answers_again() -> None:
    engine = Engine()
    watch = Watchdog(engine, STALL_S, engine.on_stall)
    watching = asyncio.create_task(watch.run())
    await asyncio.wait_for(engine.stalled.wait(), 5)
    assert watch.is_stalled
    await asyncio.sleep(STALL_S)
    assert engine.num_given_up > 1
    engine.answers.set()
    await asyncio.sleep(2 * STALL_S)
    assert (watch.is_stalled, engine.num_stalls, watching.done()) == (False, 1, False)
    watching.cancel()


async def test_engine_that_hangs_for_good_ends_the_watch() -> None:
    engine = Engine()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(Watchdog(engine, STALL_S, engine.on_stall).run(), 5)
    assert engine.num_given_up > 1


async def test_engine_that_answers_has_shown_life() -> None:
    engine = Engine()
    engine.answers.set()
    await show_life(engine, STALL_S, WorkerId("d0"))


@pytest.mark.parametrize("is_dead", [True, False])
async def test_engine_that_dies_or_hangs_while_it_is_asked_has_not(is_dead: bool) -> None:
    engine = Engine()
    stall_s = 30.0 if is_dead else STALL_S
    asked = asyncio.create_task(show_life(engine, stall_s, WorkerId("d0")))
    await asyncio.sleep(0)
    engine.is_dead = is_dead
    with pytest.raises(WorkerUnreachable) as failed:
        await asyncio.wait_for(asked, 5)
    assert failed.value.worker == "d0"

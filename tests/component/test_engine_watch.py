import asyncio

import pytest

from cluster import engine_watch
from cluster.engine_watch import EngineWatch

STALL_S = 0.05


class Engine:
    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.num_given_up = 0
        self.num_stalls = 0
        self.stalled = asyncio.Event()

    async def answer(self) -> None:
        await self.answers.wait()

    async def give_up_running(self) -> None:
        self.num_given_up += 1

    async def on_stall(self) -> None:
        self.num_stalls += 1
        self.stalled.set()


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(engine_watch, "ASK_INTERVAL_S", 0.01)


async def test_engine_that_answers_is_left_alone():
    engine = Engine()
    engine.answers.set()
    watching = asyncio.create_task(EngineWatch(engine, STALL_S, engine.on_stall).run())
    await asyncio.sleep(3 * STALL_S)
    assert (engine.num_given_up, engine.num_stalls, watching.done()) == (0, 0, False)
    watching.cancel()


async def test_engine_that_stalls_loses_its_requests_until_it_answers_again():
    engine = Engine()
    watch = EngineWatch(engine, STALL_S, engine.on_stall)
    watching = asyncio.create_task(watch.run())
    await asyncio.wait_for(engine.stalled.wait(), 5)
    assert watch.is_stalled
    await asyncio.sleep(STALL_S)
    assert engine.num_given_up > 1
    engine.answers.set()
    await asyncio.sleep(2 * STALL_S)
    assert (watch.is_stalled, engine.num_stalls, watching.done()) == (False, 1, False)
    watching.cancel()


async def test_engine_that_hangs_for_good_ends_the_watch():
    engine = Engine()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(EngineWatch(engine, STALL_S, engine.on_stall).run(), 5)
    assert engine.num_given_up > 1

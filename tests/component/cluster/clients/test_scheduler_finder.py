"""The newest Scheduler is found, also while the registry's store is slow or away."""

import threading

import pytest

from cluster.clients import scheduler_finder
from cluster.clients.scheduler_finder import SchedulerFinder
from cluster.rpc.connection import ConnectionLost
from cluster.scheduler_registry import SchedulerRecord
from tests.unit.factories import a_scheduler, an_address

OLD, NEW = a_scheduler(an_address("old"), 1), a_scheduler(an_address("new"), 2)


class Registry:
    def __init__(self) -> None:
        self.answer: SchedulerRecord | Exception | None = None
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.num_reads = 0

    def read(self) -> SchedulerRecord | None:
        self.num_reads += 1
        self.goes_on.wait(10)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def test_there_is_no_way_back_to_an_older_scheduler() -> None:
    registry = Registry()
    finder = SchedulerFinder(registry.read)
    with pytest.raises(ConnectionLost):
        await finder.newest()
    found = []
    for registry.answer in (OLD, NEW, OLD, None, ConnectionError("away")):
        found.append(await finder.newest())
    assert found == [OLD, NEW, NEW, NEW, NEW]


async def test_store_that_hangs_is_asked_once_and_delays_nobody_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_finder, "READ_TIMEOUT_S", 0.05)
    registry = Registry()
    registry.answer = OLD
    finder = SchedulerFinder(registry.read)
    await finder.newest()
    registry.goes_on.clear()
    registry.answer = NEW
    assert [await finder.newest() for _ in range(5)] == [OLD] * 5
    assert registry.num_reads == 2
    registry.goes_on.set()
    monkeypatch.setattr(scheduler_finder, "READ_TIMEOUT_S", 5.0)
    assert await finder.newest() == NEW


async def test_loss_of_the_store_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry()
    finder = SchedulerFinder(registry.read)
    registry.answer = OLD
    await finder.newest()
    registry.answer = ConnectionError("the store is away")
    for _ in range(5):
        await finder.newest()
    assert caplog.text.count("cannot be read") == 1

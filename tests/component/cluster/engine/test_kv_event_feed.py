"""A worker's KV events, from vLLM's own publisher to the Scheduler's messages."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from vllm.distributed.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventPublisherFactory,
    KVCacheEvent,
    KVEventBatch,
    KVEventsConfig,
)

from cluster.engine import kv_event_feed as kv_events
from cluster.engine.kv_event_feed import KvEventFeed, KvEventSockets
from cluster.errors import WorkerUnreachable
from cluster.messages.ids import WorkerId
from cluster.messages.kv_events import KvEvents, KvTier
from router.prefixes.index import Hit, PrefixIndex

WORKER = WorkerId("d0")


def keys(*numbers: int) -> list[bytes]:
    return [number.to_bytes(8, "big") for number in numbers]


def stored(*numbers: int, medium: str = "GPU") -> BlockStored:
    return BlockStored(list(numbers), None, list(range(16 * len(numbers))), 16, None, medium, None, [("salt",)])


class Engine:
    """vLLM's publisher, and a feed that reads it into an index."""

    def __init__(self, buffer_steps: int = 100) -> None:
        self.sockets = KvEventSockets()
        self.folder = Path(self.sockets.arguments["endpoint"].removeprefix("ipc://")).parent
        config = KVEventsConfig(**(self.sockets.arguments | {"buffer_steps": buffer_steps}))
        self._publisher = EventPublisherFactory.create(config)
        self.feed = KvEventFeed(WORKER, self.sockets, self._take)
        self.index = PrefixIndex()
        self.error: WorkerUnreachable | None = None
        self.messages: list[KvEvents] = []

    def publish(self, *events: KVCacheEvent) -> None:
        self._publisher.publish(KVEventBatch(0.0, list(events)))

    def close(self) -> None:
        self._publisher.shutdown()
        self.sockets.close()

    def holds(self, *numbers: int) -> Hit | None:
        return self.index.longest(keys(*numbers), 0.0).get(WORKER)

    async def _take(self, messages: list[KvEvents]) -> None:
        if self.error is not None:
            raise self.error
        self.messages += messages
        for message in messages:
            self.index.handle(message, 0.0)


@pytest.fixture
async def start(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Engine]]:
    monkeypatch.setattr(kv_events, "INTERVAL_S", 0.001)
    monkeypatch.setattr(kv_events, "IDLE_INTERVAL_S", 0.004)
    engines: list[Engine] = []
    tasks: list[asyncio.Task[None]] = []

    def started(**options: int) -> Engine:
        engines.append(engine := Engine(**options))
        tasks.append(asyncio.create_task(engine.feed.run()))
        return engine

    yield started
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for engine in engines:
        engine.close()


async def until(condition: Callable[[], object]) -> None:
    for _ in range(5000):
        if condition():
            return
        await asyncio.sleep(0.002)
    raise TimeoutError


def lose(engine: Engine, monkeypatch: pytest.MonkeyPatch, *lost: int) -> None:
    """Of the engine's batches, those with these numbers are not heard live."""
    event = engine.sockets.event

    def heard() -> tuple[int, bytes] | None:
        while (found := event()) is not None and found[0] in lost:
            pass
        return found

    monkeypatch.setattr(engine.sockets, "event", heard)


def test_engine_that_changes_nothing_is_looked_at_rarely_until_it_does() -> None:
    pauses = [kv_events.INTERVAL_S]
    for found in (False, False, False, False, True):
        pauses.append(kv_events.pause_s(pauses[-1], has_found=found))
    assert pauses == pytest.approx([0.03, 0.06, 0.12, 0.24, 0.24, 0.03])


async def test_what_the_engine_says_reaches_the_index(start: Callable[..., Engine]) -> None:
    engine = start()
    engine.publish(stored(1, 2), stored(2, 3, medium="CPU"))
    await until(lambda: engine.holds(1, 2, 3) == Hit(3, 2))
    engine.publish(BlockRemoved([2], "GPU"))
    await until(lambda: engine.holds(1, 2, 3) == Hit(3, 1))
    engine.publish(BlockRemoved([2, 3], "CPU"), AllBlocksCleared())
    await until(lambda: engine.holds(1) is None)
    assert engine.index.is_exact(WORKER)
    assert engine.feed.mirror.sent_through == engine.messages[-1].number


async def test_scheduler_with_many_workers_gets_fewer_messages_with_more_in_each(start: Callable[..., Engine]) -> None:
    engine = start()
    engine.publish(stored(1))
    await until(lambda: engine.holds(1))
    engine.feed.every_s = 0.3
    await until(lambda: engine.feed.mirror.sent_through == engine.messages[-1].number)
    first = len(engine.messages)
    for number in range(2, 12):
        engine.publish(stored(number))
        await asyncio.sleep(0.04)
    await until(lambda: engine.holds(*range(1, 12)) or engine.holds(11))
    assert len(engine.messages) - first <= 4


async def test_what_was_said_before_the_worker_listened_is_replayed(
    monkeypatch: pytest.MonkeyPatch, start: Callable[..., Engine]
) -> None:
    engine = start()
    lose(engine, monkeypatch, 0, 1)
    engine.publish(stored(1))
    engine.publish(stored(2))
    await until(lambda: engine.holds(1, 2) == Hit(2, 2))
    assert engine.index.is_exact(WORKER)


async def test_what_was_said_after_the_first_replay_and_before_the_worker_listened_is_replayed(
    monkeypatch: pytest.MonkeyPatch, start: Callable[..., Engine]
) -> None:
    engine = start()
    lose(engine, monkeypatch, 0)
    await until(lambda: not engine.folder.exists())  # the first replay has ended, with nothing in it
    engine.publish(stored(1))
    await until(lambda: engine.holds(1) == Hit(1, 1))
    assert engine.index.is_exact(WORKER)


async def test_gap_that_an_empty_replay_came_before_is_replayed(
    monkeypatch: pytest.MonkeyPatch, start: Callable[..., Engine]
) -> None:
    engine = start()
    lose(engine, monkeypatch, 0)
    await until(lambda: not engine.folder.exists())  # the first replay has ended, with nothing in it
    engine.feed._ask_for_replay(0, None)  # and another like it is on its way when a gap appears
    engine.publish(stored(0))
    engine.publish(stored(1))
    await until(lambda: engine.holds(0, 1) == Hit(2, 2))
    assert engine.index.is_exact(WORKER)


async def test_gap_is_replayed(monkeypatch: pytest.MonkeyPatch, start: Callable[..., Engine]) -> None:
    engine = start()
    lose(engine, monkeypatch, 2)
    await until(lambda: not engine.folder.exists())  # it listens
    for number in range(5):
        engine.publish(stored(number))
    await until(lambda: engine.holds(*range(5)) == Hit(5, 5))
    assert engine.index.is_exact(WORKER)


async def test_gap_that_the_engine_no_longer_has_is_said(
    monkeypatch: pytest.MonkeyPatch, start: Callable[..., Engine]
) -> None:
    engine = start(buffer_steps=2)
    await until(lambda: not engine.folder.exists())
    lose(engine, monkeypatch, 1)
    for number in range(6):
        engine.publish(stored(number))
    await until(lambda: engine.feed.mirror.is_exact is False)
    await until(lambda: engine.holds(5) == Hit(1, 1))
    assert engine.holds(1) is None
    assert not engine.index.is_exact(WORKER)
    engine.publish(AllBlocksCleared(), stored(9))
    await until(lambda: engine.index.is_exact(WORKER))
    assert (engine.holds(0), engine.holds(9)) == (None, Hit(1, 1))


async def test_scheduler_that_was_away_is_told_everything_when_it_asks(start: Callable[..., Engine]) -> None:
    """Not before: it has just started, and many workers have as much to tell."""
    engine = start()
    engine.publish(stored(1))
    await until(lambda: engine.holds(1))
    engine.error = WorkerUnreachable("the Scheduler cannot be reached", "scheduler")
    engine.publish(stored(2))
    await until(lambda: engine.feed.mirror.sent_through > len(engine.messages) + 1)
    engine.index, engine.error, engine.messages = PrefixIndex(), None, []
    engine.publish(stored(3))
    await until(lambda: len(engine.feed.mirror.blocks(KvTier.GPU)) == 3)
    await asyncio.sleep(10 * kv_events.INTERVAL_S)
    assert engine.messages == []
    assert engine.index.check(WORKER, engine.feed.mirror.sent_through, 0.0)
    engine.feed.send_snapshot()
    await until(lambda: engine.holds(1, 2, 3) == Hit(3, 3))
    assert engine.index.is_exact(WORKER)


async def test_scheduler_that_missed_messages_and_lives_learns_it_from_the_next_report(
    start: Callable[..., Engine],
) -> None:
    engine = start()
    engine.publish(stored(1))
    await until(lambda: engine.holds(1))
    engine.error = WorkerUnreachable("the Scheduler does not read", "scheduler")
    sent_through = engine.feed.mirror.sent_through
    assert not engine.index.check(WORKER, sent_through, 0.0)
    engine.publish(stored(2))
    await until(lambda: engine.feed.mirror.sent_through > sent_through + 1)
    assert engine.index.check(WORKER, engine.feed.mirror.sent_through, 0.0)


async def test_batch_that_cannot_be_read_makes_the_worker_unsure(start: Callable[..., Engine]) -> None:
    engine = start()
    engine.publish(stored(1))
    engine._publisher.publish(KVEventBatch(0.0, ["no event"]))
    engine.publish(stored(2))
    await until(lambda: engine.holds(1, 2) == Hit(2, 2))
    assert not engine.index.is_exact(WORKER)


async def test_sockets_are_private_and_leave_no_names(start: Callable[..., Engine]) -> None:
    engine = start()
    assert os.stat(engine.folder).st_mode & 0o077 == 0
    await until(lambda: not engine.folder.exists())
    engine.publish(stored(1))
    await until(lambda: engine.holds(1))

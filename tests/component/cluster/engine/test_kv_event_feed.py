"""A worker's KV events, from vLLM's own publisher to the Scheduler's messages."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
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
    lose(engine, monkeypatch, 1, 2, 3, 4)  # a replay is asked for when the engine has published all
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


class SaidBatches:
    """An engine that has said these batches, from number 0 on."""

    def __init__(self, *batches: bytes) -> None:
        self._left = list(enumerate(batches))

    def event(self) -> tuple[int, bytes] | None:
        return self._left.pop(0) if self._left else None

    def replayed(self) -> None:
        return None

    def connect(self) -> None: ...

    def ask_for_replay(self, first: int) -> None: ...

    def remove_names(self) -> None: ...

    def close(self) -> None: ...


async def unsent(messages: list[KvEvents]) -> None:
    raise AssertionError(messages)


def a_batch(*events: object) -> bytes:
    return msgspec.msgpack.encode([0.0, events])


def an_event(kind: str = "BlockStored", **fields: object) -> dict[str, object]:
    return {"type": kind, "block_hashes": [2]} | fields


GOOD = a_batch(an_event(block_hashes=[1]))
BAD_UTF_8 = "\ud800".encode(errors="surrogatepass")
"""Three bytes that are no UTF-8."""


@pytest.mark.parametrize(
    "batch",
    [
        b"",
        b"\xc1",
        b"\x91" * 100_000,
        GOOD[:-1],
        a_batch(an_event(medium="GPU")).replace(b"GPU", BAD_UTF_8),
        a_batch(an_event("ABC")).replace(b"ABC", BAD_UTF_8),
        a_batch(an_event(block_hashes=[-1])),
        a_batch(an_event(block_hashes=[b"short"])),
        a_batch(an_event(block_hashes=["a"])),
        a_batch("no event"),
    ],
    ids=lambda batch: f"{batch[:8]!r}, {len(batch)} bytes",
)
async def test_unreadable_batch_is_logged_and_those_after_it_are_read(
    caplog: pytest.LogCaptureFixture, batch: bytes
) -> None:
    feed = KvEventFeed(WORKER, SaidBatches(batch, GOOD), unsent)
    feed.read()
    assert not feed.mirror.is_exact
    assert feed.mirror.blocks(KvTier.GPU) == set(keys(1))
    assert caplog.text.count("KV events of worker d0 cannot be read") == 1


EVENTS = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "Other"]),
        "block_hashes": st.lists(st.integers(-(2**63), 2**64 - 1) | st.binary(max_size=40) | st.text(max_size=2)),
    },
    optional={"medium": st.sampled_from(["GPU", "CPU", "STORAGE", "else", None, 1])},
)


@given(st.lists(st.binary(max_size=40) | st.lists(EVENTS, max_size=4).map(lambda events: a_batch(*events)), max_size=4))
async def test_no_batch_ends_the_feed_and_its_messages_can_be_taken_by_the_scheduler(batches: list[bytes]) -> None:
    feed, index = KvEventFeed(WORKER, SaidBatches(*batches, GOOD), unsent), PrefixIndex()
    feed.read()
    for message in feed.mirror.take():
        index.handle(msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=KvEvents), 0.0)
    assert WORKER in index.longest(keys(1), 0.0)
    assert index.is_exact(WORKER) is feed.mirror.is_exact


async def test_sockets_are_private_and_leave_no_names(start: Callable[..., Engine]) -> None:
    engine = start()
    assert os.stat(engine.folder).st_mode & 0o077 == 0
    await until(lambda: not engine.folder.exists())
    engine.publish(stored(1))
    await until(lambda: engine.holds(1))

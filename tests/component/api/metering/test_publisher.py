"""Rows that are published at least once, from the outbox."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from redis import Redis

from api.metering import publisher
from api.metering.publisher import OutboxJob, StreamPublisher
from api.state.postgres.database import Database
from api.state.postgres.ledger.ledger_jobs import PUBLISHER_LOCK, LedgerJobs
from api.state.postgres.ledger.ledger_store import LedgerStore
from api.state.redis.client import RedisClient
from api.state.redis.usage_stream import STREAM
from tests.component.api.metering.ledger_rows import Ask
from tests.component.killable_redis import KillableRedis
from tests.unit.usage_rows import a_row


class FakePublisher:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.is_away = False
        self.hangs = False

    async def publish(self, events: Sequence[bytes]) -> bool:
        if self.hangs:
            await asyncio.Event().wait()
        if not self.is_away:
            self.events += [json.loads(event) for event in events]
        return not self.is_away

    async def close(self) -> None:
        """It has nothing open."""


@pytest.fixture
def store(database: Database) -> LedgerStore:
    return LedgerStore(database, publishes=True)


@pytest.fixture
async def client(redis: str) -> AsyncIterator[RedisClient]:
    made = RedisClient()
    made.reach(redis)
    yield made
    await made.close()


async def test_rows_are_published_in_their_order_and_leave_the_outbox(
    store: LedgerStore, jobs: LedgerJobs, ask: Ask
) -> None:
    rows = [a_row() for _ in range(450)]
    await store.write([], [], rows)
    out = FakePublisher()
    assert await OutboxJob(jobs, out).run() == 450
    assert [event["id"] for event in out.events] == [row.id for row in rows]
    assert out.events[0].items() >= {"attempt": 1, "cost_micros": 7, "tenant_id": rows[0].tenant_id}.items()
    assert ask("SELECT count(*) FROM usage_outbox") == [(0,)]
    assert await OutboxJob(jobs, out).run() == 0


async def test_what_could_not_be_published_is_published_later(store: LedgerStore, jobs: LedgerJobs) -> None:
    await store.write([], [], [a_row(), a_row()])
    out = FakePublisher()
    out.is_away = True
    assert await OutboxJob(jobs, out).run() == 0
    out.is_away = False
    assert await OutboxJob(jobs, out).run() == 2


async def test_publisher_that_hangs_is_left_and_gets_the_rows_again(
    store: LedgerStore, jobs: LedgerJobs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(publisher, "PUBLISH_TIMEOUT_S", 0.01)
    await store.write([], [], [a_row()])
    out = FakePublisher()
    out.hangs = True
    async with asyncio.timeout(30):
        assert await OutboxJob(jobs, out).run() == 0
    assert "published later" in caplog.text
    out.hangs = False
    assert await OutboxJob(jobs, out).run() == 1


async def test_oldest_rows_leave_an_outbox_that_is_full(
    store: LedgerStore, jobs: LedgerJobs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(publisher, "MAX_OUTBOX", 3)
    rows = [a_row() for _ in range(5)]
    await store.write([], [], rows)
    out = FakePublisher()
    assert await OutboxJob(jobs, out).run() == 3
    assert [event["id"] for event in out.events] == [row.id for row in rows[2:]]
    assert "2 rows of usage were not published" in caplog.text


async def test_rows_that_the_ledger_has_no_longer_leave_the_outbox(
    store: LedgerStore, jobs: LedgerJobs, ask: Ask, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The retention has dropped them while nothing could be published."""
    monkeypatch.setattr(publisher, "PUBLISHED_AT_ONCE", 2)
    ask(
        "INSERT INTO usage_outbox (tenant_id, started_at, id, attempt)"
        " SELECT 't', now(), gen_random_uuid(), 1 FROM generate_series(1, 3)"
    )
    row = a_row()
    await store.write([], [], [row])
    out = FakePublisher()
    await OutboxJob(jobs, out).run()
    assert [event["id"] for event in out.events] == [row.id]
    assert ask("SELECT count(*) FROM usage_outbox") == [(0,)]
    assert "2 rows of usage are not published" in caplog.text


async def test_one_process_publishes_at_a_time(store: LedgerStore, jobs: LedgerJobs) -> None:
    await store.write([], [], [a_row()])
    out = FakePublisher()
    async with jobs.alone(PUBLISHER_LOCK):
        assert await OutboxJob(jobs, out).run() == 0
    assert await OutboxJob(jobs, out).run() == 1


async def test_stream_of_redis_has_the_rows_and_a_bound(
    client: RedisClient, redis: str, store: LedgerStore, jobs: LedgerJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "MAX_STREAM", 100)
    with Redis.from_url(redis) as reader:
        reader.delete(STREAM)
        rows = [a_row() for _ in range(500)]
        await store.write([], [], rows)
        assert await OutboxJob(jobs, StreamPublisher(client)).run() == 500
        length: Any = reader.xlen(STREAM)
        assert 100 <= length < 400
        ((_, fields),) = reader.xrevrange(STREAM, count=1)
        assert json.loads(fields[b"row"])["id"] == rows[-1].id


async def test_stream_of_redis_has_a_bound_of_bytes(
    client: RedisClient, redis: str, store: LedgerStore, jobs: LedgerJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "MAX_STREAM_BYTES", 100_000)
    with Redis.from_url(redis) as reader:
        reader.delete(STREAM)
        rows = [a_row(end_user="u" * 512) for _ in range(500)]
        await store.write([], [], rows)
        assert await OutboxJob(jobs, StreamPublisher(client)).run() == 500
        assert reader.memory_usage(STREAM, samples=0) <= 110_000
        ((_, fields),) = reader.xrevrange(STREAM, count=1)
        assert json.loads(fields[b"row"])["id"] == rows[-1].id


async def test_redis_that_was_killed_gets_the_rows_when_it_is_back(
    killable_redis: KillableRedis, store: LedgerStore, jobs: LedgerJobs
) -> None:
    made = RedisClient()
    made.reach("redis://127.0.0.1:1/0")
    await store.write([], [], [a_row()])
    assert await OutboxJob(jobs, StreamPublisher(made)).run() == 0
    await made.close()
    back = RedisClient()
    back.reach(killable_redis.url)
    assert await OutboxJob(jobs, StreamPublisher(back)).run() == 1
    await back.close()

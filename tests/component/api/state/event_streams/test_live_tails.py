"""Live tails over a real Redis: what followers see, and what becomes of them when it goes away."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest
from redis import Redis

from api.state.event_streams import live_tails as module
from api.state.event_streams.live_tails import LiveTails, TailEvents
from api.state.redis import client as redis_client
from api.state.redis import subscriptions
from api.state.redis.client import RedisClient
from tests.component.killable_redis import KillableRedis


@asynccontextmanager
async def replica(url: str) -> AsyncIterator[LiveTails]:
    """The tails as an ingress replica has them."""
    volatile = RedisClient()
    volatile.reach(url)
    tails = LiveTails(volatile)
    yield tails
    await tails.close()
    await volatile.close()


@pytest.fixture
async def writer(killable_redis: KillableRedis) -> AsyncIterator[LiveTails]:
    async with replica(killable_redis.url) as tails:
        yield tails


@pytest.fixture
async def reader(killable_redis: KillableRedis) -> AsyncIterator[LiveTails]:
    async with replica(killable_redis.url) as tails:
        yield tails


def a_batch(seq_from: int, seq_to: int) -> TailEvents:
    return TailEvents(seq_from, seq_to, 1, b"sealed %d" % seq_to)


async def published(tails: LiveTails, *batches: TailEvents, response: str = "r") -> None:
    await tails.publish([("alice", response, batch) for batch in batches])


async def followed(
    tails: LiveTails, after: int, number: int, response: str = "r", tenant: str = "alice"
) -> list[TailEvents]:
    """At most so many batches."""
    seen = []
    async with aclosing(tails.follow(tenant, response, after)) as batches:
        async for batch in batches:
            seen.append(batch)
            if len(seen) == number:
                break
    return seen


async def is_heard(writer: LiveTails, following: "asyncio.Task[list[TailEvents]]", batch: TailEvents) -> None:
    """Published again and again until somebody has followed up to there."""
    while not following.done():
        await published(writer, batch)
        await asyncio.wait([following], timeout=0.01)


async def test_follower_sees_what_was_and_what_comes(writer: module.LiveTails, reader: module.LiveTails) -> None:
    await published(writer, a_batch(0, 2), a_batch(3, 3))
    following = asyncio.create_task(followed(reader, -1, 3))
    await is_heard(writer, following, a_batch(4, 9))
    assert await following == [a_batch(0, 2), a_batch(3, 3), a_batch(4, 9)]


async def test_follower_comes_in_where_it_left(writer: module.LiveTails, reader: module.LiveTails) -> None:
    await published(writer, a_batch(0, 2), a_batch(3, 5), a_batch(6, 8))
    assert await followed(reader, 4, 2) == [a_batch(3, 5), a_batch(6, 8)]
    assert await followed(reader, 5, 1) == [a_batch(6, 8)]


async def test_batch_that_is_published_twice_is_seen_once(writer: module.LiveTails, reader: module.LiveTails) -> None:
    await published(writer, a_batch(0, 2), a_batch(0, 2), a_batch(3, 5), a_batch(0, 2))
    assert await followed(reader, -1, 2) == [a_batch(0, 2), a_batch(3, 5)]


async def test_tail_ends_where_something_is_missing(writer: module.LiveTails, reader: module.LiveTails) -> None:
    await published(writer, a_batch(0, 2), a_batch(5, 6))
    assert await followed(reader, -1, 10) == [a_batch(0, 2)]
    assert await followed(reader, 2, 10) == []
    assert await followed(reader, 4, 1) == [a_batch(5, 6)]


async def test_silent_tail_ends(
    writer: module.LiveTails, reader: module.LiveTails, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SILENCE_S", 0.05)
    await published(writer, a_batch(0, 2))
    assert await followed(reader, -1, 10) == [a_batch(0, 2)]


async def test_long_tail_keeps_its_end(
    writer: module.LiveTails, reader: module.LiveTails, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_BATCHES", 100)
    await published(writer, *(a_batch(number, number) for number in range(1000)))
    assert await followed(reader, -1, 10) == []
    assert await followed(reader, 989, 10) == [a_batch(number, number) for number in range(990, 1000)]


async def test_tails_of_others_are_not_heard(
    writer: module.LiveTails, reader: module.LiveTails, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SILENCE_S", 0.05)
    await published(writer, a_batch(0, 2))
    assert await followed(reader, -1, 1, tenant="bob") == []
    assert await followed(reader, -1, 1, response="other") == []


async def test_hundreds_follow_on_one_connection_more(
    writer: module.LiveTails, reader: module.LiveTails, killable_redis: KillableRedis
) -> None:
    async def both_of(name: str) -> list[TailEvents]:
        """Who is sent away, because a slow core took too long, comes back."""
        while len(seen := await followed(reader, -1, 2, name)) < 2:
            pass
        return seen

    responses = [f"r{number}" for number in range(300)]
    following = [asyncio.create_task(both_of(name)) for name in responses]
    while not all(task.done() for task in following):
        await writer.publish([("alice", name, a_batch(n, n)) for name in responses for n in (0, 1)])
        await asyncio.wait(following, timeout=0.05)
    assert [await task for task in following] == [[a_batch(0, 0), a_batch(1, 1)]] * 300
    with Redis.from_url(killable_redis.url) as client:
        assert len(client.client_list()) == 1 + 1 + 2  # this one, the writer's, and the reader's two


async def test_many_may_follow_one_response(writer: module.LiveTails, reader: module.LiveTails) -> None:
    following = [asyncio.create_task(followed(reader, -1, 1)) for _ in range(50)]
    await is_heard(writer, following[-1], a_batch(0, 0))
    assert await asyncio.gather(*following) == [[a_batch(0, 0)]] * 50


async def test_one_that_leaves_takes_nothing_from_the_others(
    writer: module.LiveTails, reader: module.LiveTails
) -> None:
    staying = asyncio.create_task(followed(reader, -1, 2))
    for _ in range(20):
        leaving = asyncio.create_task(followed(reader, -1, 2))
        await asyncio.sleep(0)
        leaving.cancel()
    await published(writer, a_batch(0, 0))
    await is_heard(writer, staying, a_batch(1, 1))
    assert await staying == [a_batch(0, 0), a_batch(1, 1)]


async def test_follower_that_lags_too_far_behind_is_sent_back_to_postgresql(
    writer: module.LiveTails, reader: module.LiveTails, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "MAX_LAG_BYTES", 100)
    monkeypatch.setattr(module, "SILENCE_S", 0.5)
    async with aclosing(reader.follow("alice", "r", -1)) as batches:
        first = asyncio.create_task(anext(batches))
        while not first.done():
            await published(writer, a_batch(0, 0))
            await asyncio.wait([first], timeout=0.01)
        last = asyncio.create_task(followed(reader, 0, 19))
        await published(writer, *(a_batch(number, number) for number in range(1, 20)))
        await is_heard(writer, last, a_batch(20, 20))
        assert 1 <= len([batch async for batch in batches]) < 19


async def test_killed_redis_ends_the_tails_at_once(
    writer: module.LiveTails, reader: module.LiveTails, killable_redis: KillableRedis
) -> None:
    following = [asyncio.create_task(followed(reader, -1, 2)) for _ in range(10)]
    async with aclosing(reader.follow("alice", "r", -1)) as batches:
        first = asyncio.create_task(anext(batches))
        while not first.done():
            await published(writer, a_batch(0, 0))
            await asyncio.wait([first], timeout=0.01)
        killable_redis.kill()
        async with asyncio.timeout(module.SILENCE_S / 2):
            assert [batch async for batch in batches] == []
            assert await asyncio.gather(*following) == [[a_batch(0, 0)]] * 10


async def test_tails_come_back_with_redis(
    writer: module.LiveTails, reader: module.LiveTails, killable_redis: KillableRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_client, "ASK_AGAIN_S", 0.01)
    await published(writer, a_batch(0, 0))
    assert await followed(reader, -1, 1) == [a_batch(0, 0)]
    killable_redis.kill()
    assert await followed(reader, 0, 1) == []
    killable_redis.start()
    seen: list[TailEvents] = []
    while not seen:
        await published(writer, a_batch(1, 1))
        seen = await followed(reader, 0, 1)
    assert seen == [a_batch(1, 1)]


async def test_redis_that_hangs_holds_no_follower_up(
    writer: module.LiveTails, reader: module.LiveTails, killable_redis: KillableRedis
) -> None:
    killable_redis.hold_up()
    async with asyncio.timeout(module.SILENCE_S / 2):
        assert await followed(reader, -1, 1) == []
        await published(writer, a_batch(0, 0))
    killable_redis.let_go_on()


async def test_what_was_published_is_gone_in_time(writer: module.LiveTails, killable_redis: KillableRedis) -> None:
    await published(writer, a_batch(0, 0))
    with Redis.from_url(killable_redis.url) as client:
        assert [client.ttl(key) for key in client.scan_iter()] == [module.KEPT_S]

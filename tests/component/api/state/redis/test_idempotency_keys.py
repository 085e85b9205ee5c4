"""Requests that are sent again, with and without a Redis between two replicas."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis import Redis

from api.state.redis import idempotency_keys as module
from api.state.redis.client import RedisClient
from api.state.redis.idempotency_keys import HeldClaim, Hold, IdempotencyKeys, KeyClaim
from tests.component.killable_redis import KillableRedis
from tests.expected import present

ONE, OTHER = KeyClaim("f", "resp_1"), KeyClaim("f", "resp_2")


@pytest.fixture
async def replicas(killable_redis: KillableRedis) -> AsyncIterator[list[IdempotencyKeys]]:
    """Two that share a Redis."""
    reached = [RedisClient(), RedisClient()]
    for volatile in reached:
        volatile.reach(killable_redis.url)
    made = [IdempotencyKeys(volatile, str) for volatile in reached]
    yield made
    for retries, volatile in zip(made, reached, strict=True):
        await retries.settled()
        await volatile.close()


def done(error: Exception | None = None) -> "asyncio.Future[None]":
    """An admission that has ended."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    ended.set_result(None) if error is None else ended.set_exception(error)
    return ended


async def admitted(retries: IdempotencyKeys, name: str, claim: KeyClaim, tenant: str = "alice") -> None:
    hold = await retries.claim(tenant, name, claim)
    assert isinstance(hold, Hold)
    hold.settle(done())
    await retries.settled()


async def test_name_belongs_to_who_was_first_at_every_replica(replicas: list[module.IdempotencyKeys]) -> None:
    first, other = replicas
    await admitted(first, "k", ONE)
    for retries in replicas:
        assert await retries.claim("alice", "k", OTHER) == HeldClaim(ONE, is_admitted=True)
    await admitted(other, "K" * 10_000, OTHER)
    await admitted(other, "k", OTHER, tenant="bob")


async def test_name_of_a_request_that_is_being_admitted_is_not_free(replicas: list[module.IdempotencyKeys]) -> None:
    first, other = replicas
    hold = await first.claim("alice", "k", ONE)
    assert isinstance(hold, Hold)
    for retries in replicas:
        assert await retries.claim("alice", "k", OTHER) == HeldClaim(ONE, is_admitted=False)
    hold.settle(done(ValueError()))
    await first.settled()
    await admitted(other, "k", OTHER)


async def test_request_that_is_sent_again_on_purpose_counts_from_then_on(
    replicas: list[module.IdempotencyKeys],
) -> None:
    first, other = replicas
    earlier = await first.take("alice", "f", ONE)
    (await other.take("alice", "f", OTHER)).settle(done())
    earlier.settle(done())
    for retries in replicas:
        await retries.settled()
    assert await first.claim("alice", "f", KeyClaim("f", "resp_3")) == HeldClaim(OTHER, is_admitted=True)


async def test_name_of_a_response_that_is_gone_is_taken_by_one(replicas: list[module.IdempotencyKeys]) -> None:
    first, other = replicas
    await admitted(first, "k", ONE)
    assert isinstance(await other.claim("alice", "k", OTHER, gone=ONE), Hold)
    third = KeyClaim("f", "resp_3")
    assert await first.claim("alice", "k", third, gone=ONE) == HeldClaim(OTHER, is_admitted=False)


async def test_one_replica_knows_its_own_while_redis_is_away(
    replicas: list[module.IdempotencyKeys], killable_redis: KillableRedis
) -> None:
    first = replicas[0]
    await admitted(first, "k", ONE)
    killable_redis.kill()
    assert await first.claim("alice", "k", OTHER) == HeldClaim(ONE, is_admitted=True)
    await admitted(first, "another", OTHER)
    assert await first.claim("alice", "another", ONE) == HeldClaim(OTHER, is_admitted=True)


async def test_what_redis_forgets_its_owner_tells_it_again(
    replicas: list[module.IdempotencyKeys], killable_redis: KillableRedis
) -> None:
    first, other = replicas
    await admitted(first, "k", ONE)
    with Redis.from_url(killable_redis.url) as client:
        client.flushall()
    assert await first.claim("alice", "k", OTHER) == HeldClaim(ONE, is_admitted=True)
    assert await other.claim("alice", "k", OTHER) == HeldClaim(ONE, is_admitted=True)


async def test_hold_is_renewed_as_long_as_the_admission_takes_and_ends_with_its_replica(
    replicas: list[module.IdempotencyKeys], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLAIM_S", 0.2)
    first, other = replicas
    hold = await first.claim("alice", "k", ONE)
    assert isinstance(hold, Hold)
    await asyncio.sleep(0.5)  # much longer than a lease
    assert await other.claim("alice", "k", OTHER) == HeldClaim(ONE, is_admitted=False)
    present(hold._renewal).cancel()  # its replica is killed
    await asyncio.sleep(0.3)
    assert isinstance(await other.claim("alice", "k", OTHER), Hold)


async def test_all_of_it_is_forgotten_in_time_and_says_nothing_of_the_request(
    replicas: list[module.IdempotencyKeys], killable_redis: KillableRedis
) -> None:
    await admitted(replicas[0], "k", ONE)
    await replicas[0].take("alice", "j", OTHER)
    with Redis.from_url(killable_redis.url) as client:
        lasts = {name: client.ttl(f"baton:request:alice:{name}") for name in "kj"}
    assert lasts == {"k": module.KEPT_S, "j": int(module.CLAIM_S)}

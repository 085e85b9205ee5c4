"""Requests that are sent again, with and without a Redis between two replicas."""

from collections.abc import AsyncIterator

import pytest
from redis import Redis

from api.state import retries as module
from api.state.retries import Claim, Retries
from api.state.volatile import Volatile
from tests.component.forgetful import ForgetfulRedis


@pytest.fixture
async def replicas(forgetful: ForgetfulRedis) -> AsyncIterator[list[Retries]]:
    """Two that share a Redis."""
    reached = [Volatile(), Volatile()]
    for volatile in reached:
        volatile.reach(forgetful.url)
    yield [Retries(volatile) for volatile in reached]
    for volatile in reached:
        await volatile.close()


async def test_retry_finds_the_response_at_another_replica(replicas):
    first, other = replicas
    await first.remember("alice", "f", "resp_1")
    assert await other.running("alice", "f") == "resp_1"
    assert await other.running("alice", "g") is None
    assert await other.running("bob", "f") is None


async def test_request_that_is_sent_again_on_purpose_counts_from_then_on(replicas):
    first, other = replicas
    await first.remember("alice", "f", "resp_1")
    await other.remember("alice", "f", "resp_2")
    assert await first.running("alice", "f") == "resp_2"


async def test_one_replica_knows_its_own_while_redis_is_away(replicas, forgetful):
    first, other = replicas
    await first.remember("alice", "f", "resp_1")
    forgetful.kill()
    assert await first.running("alice", "f") == "resp_1"
    assert await other.running("alice", "f") is None
    assert await first.claim("alice", "k", Claim("f", "resp_1")) == Claim("f", "resp_1")
    assert await first.claim("alice", "k", Claim("g", "resp_2")) == Claim("f", "resp_1")


async def test_key_belongs_to_who_was_first(replicas):
    first, other = replicas
    assert await first.claim("alice", "k", Claim("f", "resp_1")) == Claim("f", "resp_1")
    assert await other.claim("alice", "k", Claim("f", "resp_2")) == Claim("f", "resp_1")
    assert await other.claim("alice", "k", Claim("g", "resp_3")) == Claim("f", "resp_1")
    assert await first.claim("alice", "k", Claim("g", "resp_3")) == Claim("f", "resp_1")
    assert await other.claim("bob", "k", Claim("g", "resp_3")) == Claim("g", "resp_3")
    assert await other.claim("alice", "K" * 10_000, Claim("g", "resp_3")) == Claim("g", "resp_3")


async def test_key_of_a_refused_request_is_free_again(replicas):
    first, other = replicas
    refused, next_one = Claim("f", "resp_1"), Claim("f", "resp_2")
    await first.claim("alice", "k", refused)
    assert await other.claim("alice", "k", next_one) == refused
    await other.claim_anew("alice", "k", next_one)
    assert await first.claim("alice", "k", refused) == next_one


async def test_all_of_it_is_forgotten_in_time(replicas, forgetful):
    await replicas[0].remember("alice", "f", "resp_1")
    await replicas[0].claim("alice", "k", Claim("f", "resp_1"))
    with Redis.from_url(forgetful.url) as client:
        assert [client.ttl(key) for key in client.scan_iter()] == [module.KEPT_S] * 2

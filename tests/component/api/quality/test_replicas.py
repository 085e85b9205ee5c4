"""The lease and the commands of the replicas, with a real Redis."""

import uuid
from collections.abc import AsyncIterator

import msgspec
import pytest

from api.quality.board import CommandKind, ProbeCommand
from api.quality.replicas import ProbeReplicas
from api.state.redis.client import RedisClient


@pytest.fixture
async def client(redis: str) -> AsyncIterator[RedisClient]:
    made = RedisClient()
    made.reach(redis)
    yield made
    await made.close()


@pytest.fixture
def service() -> str:
    return uuid.uuid4().hex


async def test_each_replica_that_takes_the_lease_gets_a_higher_number(client: RedisClient, service: str) -> None:
    one, other = [ProbeReplicas(client, service, name, is_alone=False) for name in ("i0", "i1")]
    assert (one.lease, await one.hold(), one.lease) == (0, True, 1)
    assert (await one.hold(), one.lease) == (True, 1), "it is the same lease"
    assert (await other.hold(), other.lease) == (False, 0)
    await one.release()
    assert (await other.hold(), other.lease) == (True, 2)
    assert (await one.hold(), one.lease) == (False, 1)


async def test_number_of_a_lease_rises_although_redis_has_forgotten(client: RedisClient, service: str) -> None:
    one = ProbeReplicas(client, service, "i0", is_alone=False)
    await one.hold()
    await client.run(("DEL", f"baton:quality:{service}:lease", f"baton:quality:{service}:lease-number"))
    assert (await one.hold(), one.lease) == (True, 2)


async def test_only_replica_of_a_service_without_redis_has_no_number() -> None:
    one = ProbeReplicas(RedisClient(), "s", "i0", is_alone=True)
    assert (await one.hold(), one.lease) == (True, 0)


@pytest.mark.parametrize("text", [b'{"id": "\xff", "kind": "run"}', b"[" * 100_000, b"{}"])
async def test_command_that_cannot_be_read_does_not_lose_others(client: RedisClient, service: str, text: bytes) -> None:
    replicas = ProbeReplicas(client, service, "i0", is_alone=False)
    commands = [ProbeCommand(id=id, kind=CommandKind.RUN) for id in ("1", "2")]
    await replicas.pass_on(commands[0])
    await client.run(("RPUSH", f"baton:quality:{service}:commands", text))
    await replicas.pass_on(commands[1])
    assert await replicas.take() == commands


@pytest.mark.parametrize("text", [b'{"replica": "\xff"}', b'{"targets": ' + b"[" * 100_000, msgspec.json.encode([])])
async def test_view_that_cannot_be_read_is_none(client: RedisClient, service: str, text: bytes) -> None:
    replicas = ProbeReplicas(client, service, "i0", is_alone=False)
    await client.run(("SET", f"baton:quality:{service}:view", text))
    assert await replicas.shown() is None

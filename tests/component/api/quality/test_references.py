"""Where references are kept, with a real Redis. Each store is that of a node with a folder of its own."""

from collections.abc import AsyncIterator
from pathlib import Path as FilePath

import pytest

from api.quality.probe_set import Reference
from api.quality.references import ReferenceStore
from api.state.redis.client import RedisClient
from cluster.messages.ids import Path
from tests.unit.api.quality.answers import an_answer

KEY = "baton:quality:reference:f"
UNREADABLE = [b'{"model": "\xff"}', b'{"answers": ' + b"[" * 100_000, b"\xff", b"{}", b""]


def a_reference(model: str, learned_at: float = 0.0, fingerprint: str = "f") -> Reference:
    return Reference(
        fingerprint=fingerprint,
        model=model,
        learned_at=learned_at,
        answers={"water": an_answer(1, 2)},
        tolerances={Path.DECODE: 0.5},
    )


@pytest.fixture
async def client(redis: str) -> AsyncIterator[RedisClient]:
    made = RedisClient()
    made.reach(redis)
    await made.run(("DEL", KEY))
    yield made
    await made.close()


async def test_reference_that_was_learned_last_counts_whatever_the_clocks_say(
    client: RedisClient, tmp_path: FilePath
) -> None:
    one, other = ReferenceStore(tmp_path / "a", client), ReferenceStore(tmp_path / "b", client)
    await one.save(a_reference("old", learned_at=9999.0))
    await other.save(a_reference("new", learned_at=1.0))
    for store in (one, other):
        loaded = await store.load("f")
        assert loaded is not None
        assert (loaded.model, loaded.generation, loaded.tolerances) == ("new", 2, {Path.DECODE: 0.5})


async def test_reference_that_was_forgotten_does_not_come_back(client: RedisClient, tmp_path: FilePath) -> None:
    one, other = ReferenceStore(tmp_path / "a", client), ReferenceStore(tmp_path / "b", client)
    await one.save(a_reference("old"))
    await other.save(Reference(fingerprint="f", model="m", learned_at=0.0, answers={}))
    for store in (one, other, ReferenceStore(tmp_path / "b", RedisClient())):
        loaded = await store.load("f")
        assert loaded is not None and loaded.answers == {}


async def test_what_was_saved_while_redis_was_away_is_shared_later(
    client: RedisClient, redis: str, tmp_path: FilePath
) -> None:
    other = ReferenceStore(tmp_path / "b", client)
    await other.save(a_reference("old"))
    own = RedisClient()
    one = ReferenceStore(tmp_path / "a", own)
    await one.save(a_reference("older"))
    await one.save(a_reference("new"))
    own.reach(redis)
    await one.share()
    loaded = await other.load("f")
    assert loaded is not None and loaded.model == "new"
    await own.close()


async def test_what_was_saved_while_redis_was_away_replaces_no_later_one(
    client: RedisClient, redis: str, tmp_path: FilePath
) -> None:
    own = RedisClient()
    one, other = ReferenceStore(tmp_path / "a", own), ReferenceStore(tmp_path / "b", client)
    await one.save(a_reference("cut off"))
    await other.save(a_reference("old"))
    await other.save(a_reference("new"))
    own.reach(redis)
    await one.share()
    for store in (one, other):
        loaded = await store.load("f")
        assert loaded is not None and loaded.model == "new"
    await own.close()


@pytest.mark.parametrize("text", UNREADABLE)
async def test_kept_reference_that_cannot_be_read_is_none(client: RedisClient, tmp_path: FilePath, text: bytes) -> None:
    store = ReferenceStore(tmp_path, client)
    await client.run(("SET", KEY, text))
    assert await store.load("f") is None
    (tmp_path / "f.json").write_bytes(text)
    assert await store.load("f") is None
    await store.save(a_reference("new"))
    loaded = await store.load("f")
    assert loaded is not None and loaded.model == "new"

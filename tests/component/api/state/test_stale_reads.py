"""What readers see while a real PostgreSQL is down: copies from a real Redis, but of nothing that was deleted."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from openai import AsyncOpenAI, InternalServerError
from redis import Redis

from api.state.lifecycle import ChatState
from api.state.postgres import database
from api.state.postgres.stores.conversations import Conversation
from api.state.redis import read_cache as module
from api.wire.pages import Page
from api.wire.response_headers import EXPOSED
from cluster.config.state import StateConfig
from cluster.errors import StateUnavailable
from tests.component.app_with_fakes import FakeFrontend
from tests.component.app_with_postgres import ClientOf, clients_of
from tests.component.emptied import emptied
from tests.component.killable_postgres import KillablePostgres
from tests.component.killable_redis import KillableRedis
from tests.component.openai_objects import id_of
from tests.component.reached import reached
from tests.expected import present
from tests.unit.chat_chunks import answer

FRAMES = [f"data: {msgspec.json.encode(chunk).decode()}\n\n" for chunk in answer("An ", "answer")] + [
    "data: [DONE]\n\n"
]
SECRET = "the treasure lies under the oak"
HELLO: Any = {"type": "message", "role": "user", "content": SECRET}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KillablePostgres]:
    made = KillablePostgres(tmp_path_factory.mktemp("copies") / "postgres")
    yield made
    made.close()


@pytest.fixture
def own_postgres(server: KillablePostgres, monkeypatch: pytest.MonkeyPatch) -> KillablePostgres:
    """Up, and empty."""
    monkeypatch.setattr(database, "CONNECTION_TIMEOUT_S", 0.2)
    server.up()
    emptied(server.url)
    return server


@pytest.fixture
async def states(
    own_postgres: KillablePostgres, killable_redis: KillableRedis, tmp_path: Path
) -> AsyncIterator[list[ChatState]]:
    """Two replicas."""
    config = StateConfig(database_url=own_postgres.url, redis_url=killable_redis.url, data_dir=str(tmp_path))
    async with reached(ChatState(config)) as one, reached(ChatState(config)) as other:
        yield [one, other]


@pytest.fixture
async def clients(states: list[ChatState]) -> AsyncIterator[ClientOf]:
    async with clients_of(states[0], FakeFrontend(FRAMES)) as found:
        yield found


@pytest.fixture
def client(clients: ClientOf) -> AsyncOpenAI:
    return clients("sk-alice")


async def is_away(*asked: Any) -> bool:
    for ask in asked:
        with pytest.raises(InternalServerError) as caught:
            await ask
        assert (caught.value.status_code, caught.value.code) == (503, "state_unavailable")
    return True


async def is_refused(ask: Awaitable[Any]) -> bool:
    try:
        await ask
    except InternalServerError:
        return True
    return False


async def test_what_was_read_is_shown_again_with_its_age(client: AsyncOpenAI, own_postgres: KillablePostgres) -> None:
    made = await client.conversations.create(items=[HELLO], metadata={"topic": "demo"})
    items = await client.conversations.items.list(made.id)
    assert await client.conversations.retrieve(made.id) == made
    own_postgres.down()
    again = await client.conversations.with_raw_response.retrieve(made.id)
    assert again.parse() == made and 0 <= int(again.headers["x-baton-stale"]) < 60
    again_items = await client.conversations.items.with_raw_response.list(made.id)
    assert again_items.parse().data == items.data and "x-baton-stale" in again_items.headers
    assert {name for name in again.headers if name.startswith("x-baton-")} <= set(EXPOSED)


async def test_responses_are_shown_again(client: AsyncOpenAI, own_postgres: KillablePostgres) -> None:
    made = await client.responses.create(model="m", input="Hello")
    items = await client.responses.input_items.list(made.id)
    assert await client.responses.retrieve(made.id) == made
    own_postgres.down()
    assert await client.responses.retrieve(made.id) == made
    assert (await client.responses.input_items.list(made.id)).data == items.data


async def test_fresh_answers_have_no_age(client: AsyncOpenAI, own_postgres: KillablePostgres) -> None:
    made = await client.conversations.create(items=[HELLO])
    for _ in range(2):
        fresh = await client.conversations.with_raw_response.retrieve(made.id)
        assert "x-baton-stale" not in fresh.headers


async def test_writes_and_what_was_not_read_have_to_wait(
    client: AsyncOpenAI, clients: ClientOf, own_postgres: KillablePostgres
) -> None:
    made = await client.conversations.create(items=[HELLO])
    unread = await client.conversations.create()
    items = await client.conversations.items.list(made.id)
    await client.conversations.retrieve(made.id)
    own_postgres.down()
    assert await is_away(
        client.conversations.retrieve(unread.id),
        client.conversations.items.list(made.id, limit=3),
        client.conversations.items.list(made.id, after=id_of(items.data[0])),
        client.conversations.items.create(made.id, items=[HELLO]),
        client.conversations.update(made.id, metadata={}),
        client.conversations.delete(made.id),
        clients("sk-bob").conversations.retrieve(made.id),
    )


async def test_after_the_outage_answers_are_fresh(
    client: AsyncOpenAI, states: list[ChatState], own_postgres: KillablePostgres
) -> None:
    made = await client.conversations.create(items=[HELLO])
    await client.conversations.items.list(made.id)
    own_postgres.down()
    assert len((await client.conversations.items.list(made.id)).data) == 1
    own_postgres.up()
    async with asyncio.timeout(30):
        while await is_refused(client.conversations.items.create(made.id, items=[HELLO])):
            pass
    fresh = await client.conversations.items.with_raw_response.list(made.id)
    assert len(fresh.parse().data) == 2 and "x-baton-stale" not in fresh.headers


@pytest.fixture
def loses_replies(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From when it is called on: PostgreSQL commits, and nobody hears of it."""
    transaction = database.Database.transaction

    @asynccontextmanager
    async def lost(self: Any, *options: Any, **named: Any) -> AsyncIterator[Any]:
        async with transaction(self, *options, **named) as opened:
            yield opened
        raise StateUnavailable("lost", 1.0)

    return lambda: monkeypatch.setattr(database.Database, "transaction", lost)


@pytest.mark.parametrize("is_heard_of", [True, False])
async def test_deleted_conversation_is_never_shown_nor_are_its_responses(
    client: AsyncOpenAI, own_postgres: KillablePostgres, is_heard_of: bool, loses_replies: Callable[[], None]
) -> None:
    conversation = await client.conversations.create(items=[HELLO])
    response = await client.responses.create(model="m", input="Hello", conversation=conversation.id)
    asks: list[Callable[[], Awaitable[Any]]] = [
        lambda: client.conversations.retrieve(conversation.id),
        lambda: client.conversations.items.list(conversation.id),
        lambda: client.responses.retrieve(response.id),
        lambda: client.responses.input_items.list(response.id),
    ]
    for ask in asks:
        await ask()
    if not is_heard_of:
        loses_replies()
    assert await is_refused(client.conversations.delete(conversation.id)) is not is_heard_of
    own_postgres.down()
    assert await is_away(*(ask() for ask in asks))


async def test_deleted_response_is_never_shown(client: AsyncOpenAI, own_postgres: KillablePostgres) -> None:
    response = await client.responses.create(model="m", input="Hello")
    await client.responses.retrieve(response.id)
    await client.responses.delete(response.id)
    own_postgres.down()
    assert await is_away(client.responses.retrieve(response.id))


@pytest.mark.parametrize("is_heard_of", [True, False])
async def test_deleted_item_is_never_shown_nor_in_its_response(
    client: AsyncOpenAI, own_postgres: KillablePostgres, is_heard_of: bool, loses_replies: Callable[[], None]
) -> None:
    conversation = await client.conversations.create()
    response = await client.responses.create(model="m", input=SECRET, conversation=conversation.id)
    items = await client.conversations.items.list(conversation.id, order="asc")
    await client.responses.retrieve(response.id)
    await client.responses.input_items.list(response.id)
    if not is_heard_of:
        loses_replies()
    deleting = client.conversations.items.delete(id_of(items.data[0]), conversation_id=conversation.id)
    assert await is_refused(deleting) is not is_heard_of
    own_postgres.down()
    assert await is_away(
        client.conversations.items.list(conversation.id, order="asc"),
        client.responses.retrieve(response.id),
        client.responses.input_items.list(response.id),
    )


async def test_what_was_purged_is_never_shown(
    client: AsyncOpenAI, own_postgres: KillablePostgres, killable_redis: KillableRedis, tmp_path: Path
) -> None:
    conversation = await client.conversations.create()
    turn = await client.responses.create(model="m", input="Hello", conversation=conversation.id)
    alone = await client.responses.create(model="m", input="Hello")
    asks: list[Callable[[], Awaitable[Any]]] = [
        lambda: client.conversations.retrieve(conversation.id),
        lambda: client.responses.retrieve(turn.id),
        lambda: client.responses.retrieve(alone.id),
    ]
    for ask in asks:
        await ask()
    config = StateConfig(
        database_url=own_postgres.url, redis_url=killable_redis.url, data_dir=str(tmp_path), retention_days=1e-9
    )
    async with reached(ChatState(config)) as purging:
        assert await purging.stores.retention.run() == 2
    own_postgres.down()
    assert await is_away(*(ask() for ask in asks))


async def test_turn_that_was_replaced_is_not_shown_in_its_conversation(
    client: AsyncOpenAI, own_postgres: KillablePostgres
) -> None:
    conversation = await client.conversations.create()
    turn = await client.responses.create(model="m", input=SECRET, conversation=conversation.id)
    await client.conversations.items.list(conversation.id)
    await client.post(f"/responses/{turn.id}/regenerate", cast_to=object, body={})
    own_postgres.down()
    assert await is_away(client.conversations.items.list(conversation.id))


async def test_metadata_from_before_an_update_is_not_shown(client: AsyncOpenAI, own_postgres: KillablePostgres) -> None:
    made = await client.conversations.create(items=[HELLO], metadata={"name": "Ada"})
    await client.conversations.retrieve(made.id)
    await client.conversations.update(made.id, metadata={})
    own_postgres.down()
    assert await is_away(client.conversations.retrieve(made.id))


async def known(state: ChatState, tenant: str = "t") -> Conversation:
    """A conversation whose tenant's key the replica knows."""
    item = {"type": "message", "role": "user", "status": "completed", "content": []}
    return await state.stores.conversations.create(tenant, {}, [item])


async def test_reader_that_is_slower_than_a_deletion_keeps_nothing(states: list[ChatState]) -> None:
    mine, others = (state.cache for state in states)
    await known(states[0])
    is_reading, may_end = asyncio.Event(), asyncio.Event()

    async def ask() -> dict[str, Any]:
        is_reading.set()
        await may_end.wait()
        return {"text": "from before"}

    reading = asyncio.create_task(mine.read("t", "conv_1", "conversation", ask))
    await is_reading.wait()
    async with others.forgetting("t", "conv_1"):
        pass
    may_end.set()
    assert (await reading).body == {"text": "from before"}
    assert await mine.get("t", "conv_1", "conversation") is None


async def kept(state: ChatState, body: dict[str, Any]) -> None:
    mark = await state.cache.mark("t", "conv_1")
    assert mark is not None
    await state.cache.put("t", "conv_1", "conversation", body, mark)


async def test_copy_is_shown_by_other_replicas_that_know_the_key(states: list[ChatState]) -> None:
    made = await known(states[0])
    await kept(states[0], {"text": SECRET})
    assert await states[1].cache.get("t", "conv_1", "conversation") is None
    await states[1].stores.conversations.items("t", made.id, Page(None, 1, newest_first=True))
    copy = await states[1].cache.get("t", "conv_1", "conversation")
    assert copy is not None and copy.body == {"text": SECRET}


async def test_deletion_while_redis_is_away_wins_when_it_is_back(
    states: list[ChatState], own_postgres: KillablePostgres, tmp_path: Path
) -> None:
    away = ChatState(StateConfig(database_url=own_postgres.url, data_dir=str(tmp_path)))  # has not looked for it yet
    await known(states[0])
    await kept(states[0], {"text": SECRET})
    async with away.cache.forgetting("t", "conv_1"):
        pass
    assert await states[0].cache.get("t", "conv_1", "conversation") is not None
    await away.look_for_redis()
    assert await states[0].cache.get("t", "conv_1", "conversation") is None
    await away.close()


async def test_deletion_that_was_cancelled_counts(states: list[ChatState]) -> None:
    await known(states[0])
    await kept(states[0], {"text": SECRET})
    is_deleting = asyncio.Event()

    async def delete() -> None:
        async with states[0].cache.forgetting("t", "conv_1"):
            is_deleting.set()
            await asyncio.Event().wait()

    deleting = asyncio.create_task(delete())
    await is_deleting.wait()
    deleting.cancel()
    await asyncio.wait([deleting])
    assert await states[1].cache.get("t", "conv_1", "conversation") is None


async def test_redis_that_was_emptied_keeps_nothing_of_a_read_from_before(
    states: list[ChatState], killable_redis: KillableRedis
) -> None:
    await known(states[0])
    mark = await states[0].cache.mark("t", "conv_1")
    with Redis.from_url(killable_redis.url) as client:
        client.flushall()
    await states[0].cache.put("t", "conv_1", "conversation", {}, present(mark))
    assert await states[0].cache.get("t", "conv_1", "conversation") is None


async def test_old_copies_are_not_shown(states: list[ChatState], monkeypatch: pytest.MonkeyPatch) -> None:
    await known(states[0])
    await kept(states[0], {"text": SECRET})
    now = time.time()
    monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: now + 500))
    copy = await states[0].cache.get("t", "conv_1", "conversation")
    assert copy is not None and copy.age_s == pytest.approx(500, abs=5)
    monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: now + 601))
    assert await states[0].cache.get("t", "conv_1", "conversation") is None


async def test_redis_sees_no_text(states: list[ChatState], client: AsyncOpenAI, killable_redis: KillableRedis) -> None:
    made = await client.conversations.create(items=[HELLO], metadata={"note": SECRET})
    await client.conversations.items.list(made.id)
    await client.conversations.retrieve(made.id)
    with Redis.from_url(killable_redis.url) as redis:
        held = {key: redis.hgetall(key) for key in redis.scan_iter()}
    assert any(len(fields) == 3 for fields in held.values()) and SECRET not in str(held)


async def test_too_large_copies_are_not_kept(states: list[ChatState]) -> None:
    await known(states[0])
    await kept(states[0], {"text": "x" * module.MAX_BYTES})
    assert await states[0].cache.get("t", "conv_1", "conversation") is None


async def test_without_redis_everything_works_but_the_copies(
    client: AsyncOpenAI, own_postgres: KillablePostgres, killable_redis: KillableRedis
) -> None:
    killable_redis.kill()
    made = await client.conversations.create(items=[HELLO])
    assert await client.conversations.retrieve(made.id) == made
    assert len((await client.conversations.items.list(made.id)).data) == 1
    await client.conversations.items.create(made.id, items=[HELLO])
    own_postgres.down()
    assert await is_away(client.conversations.retrieve(made.id))
    own_postgres.up()

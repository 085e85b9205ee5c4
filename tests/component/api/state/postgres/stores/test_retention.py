"""What leaves the database by itself, and what stays."""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from openai import AsyncOpenAI, NotFoundError

from api.identity.tenants import tenant_of_key
from api.state.lifecycle import ChatState
from api.state.postgres import database
from api.state.postgres.stores import retention
from api.state.postgres.stores.retention import DELETED_AT_ONCE
from cluster.config.state import StateConfig, TenantStateConfig
from tests.component.answering import Model
from tests.component.app_with_fakes import FakeFrontend
from tests.component.app_with_postgres import ClientOf, clients_of
from tests.component.reached import reached

ALICE = tenant_of_key("sk-alice")
HELLO: Any = {"type": "message", "role": "user", "content": "Hello"}

Purge = Callable[..., Awaitable[int]]


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
async def clients(state: ChatState, model: FakeFrontend) -> AsyncIterator[ClientOf]:
    async with clients_of(state, model) as found:
        yield found


@pytest.fixture
def client(clients: ClientOf) -> AsyncOpenAI:
    return clients("sk-alice")


@pytest.fixture
def purge(postgres: str, tmp_path: Path) -> Purge:
    """The job of an ingress with this configuration."""

    async def purged(**config: Any) -> int:
        config |= {"database_url": postgres, "data_dir": str(tmp_path)}
        async with reached(ChatState(StateConfig(**config))) as state:
            return await state.stores.retention.run()

    return purged


@pytest.fixture
def aged(postgres: str) -> Callable[[float], None]:
    """All that there is is so many days older."""

    def age(days: float) -> None:
        with psycopg.connect(postgres) as connection:
            connection.execute("SELECT set_config('app.tenant_id', '*', true)")
            tenants = [name for (name,) in connection.execute("SELECT id FROM tenants WHERE id <> '*'").fetchall()]
            for tenant in tenants:
                connection.execute("SELECT set_config('app.tenant_id', %s, true)", [tenant])
                past = f"interval '{days} days'"
                connection.execute(
                    f"UPDATE conversations SET updated_at = updated_at - {past}, deleted_at = deleted_at - {past}"
                )
                connection.execute(f"UPDATE responses SET created_at = created_at - {past}")

    return age


async def is_there(asked: Awaitable[Any]) -> bool:
    try:
        await asked
    except NotFoundError:
        return False
    return True


def num_rows(postgres: str, table: str) -> int:
    with psycopg.connect(postgres) as connection:
        connection.execute("SELECT set_config('app.tenant_id', '*', true)")
        (row,) = connection.execute(f"SELECT count(*) FROM {table}").fetchall()
        return int(row[0])


async def test_deleted_conversation_is_purged_in_time(
    client: AsyncOpenAI, purge: Purge, aged: Callable[[float], None], postgres: str
) -> None:
    kept = await client.conversations.create(items=[HELLO])
    gone = await client.conversations.create(items=[HELLO])
    await client.conversations.delete(gone.id)
    assert await purge() == 0
    aged(8)
    assert await purge() == 1
    assert await is_there(client.conversations.retrieve(kept.id))
    assert num_rows(postgres, "items") == 1


async def test_everything_is_kept_unless_retention_is_configured(
    client: AsyncOpenAI, purge: Purge, aged: Callable[[float], None]
) -> None:
    made = await client.conversations.create(items=[HELLO])
    answer = await client.responses.create(model="m", input="Hello")
    aged(3650)
    assert await purge() == 0
    assert await is_there(client.conversations.retrieve(made.id)) and await is_there(
        client.responses.retrieve(answer.id)
    )


async def test_what_nobody_has_touched_for_so_long_is_purged_with_all_that_it_has(
    client: AsyncOpenAI, purge: Purge, aged: Callable[[float], None], postgres: str
) -> None:
    old = await client.conversations.create(items=[HELLO])
    turn = await client.responses.create(model="m", input="Hello", conversation=old.id)
    alone = await client.responses.create(model="m", input="Hello")
    touched = await client.conversations.create(items=[HELLO])
    aged(31)
    await client.conversations.items.create(touched.id, items=[HELLO])
    new = await client.responses.create(model="m", input="Hello")
    assert await purge(retention_days=30) == 2
    for ask in (
        client.conversations.retrieve(old.id),
        client.responses.retrieve(turn.id),
        client.responses.retrieve(alone.id),
    ):
        assert not await is_there(ask)
    assert await is_there(client.conversations.retrieve(touched.id)) and await is_there(
        client.responses.retrieve(new.id)
    )
    assert (num_rows(postgres, "items"), num_rows(postgres, "responses")) == (4, 1)


async def test_deleted_conversation_is_kept_no_longer_than_others(
    client: AsyncOpenAI, purge: Purge, aged: Callable[[float], None]
) -> None:
    gone = await client.conversations.create()
    await client.conversations.delete(gone.id)
    aged(2)
    assert await purge(retention_days=1) == 1


async def test_tenant_has_a_retention_of_its_own(
    client: AsyncOpenAI, clients: ClientOf, purge: Purge, aged: Callable[[float], None]
) -> None:
    hers, his = [await clients(key).conversations.create() for key in ("sk-alice", "sk-bob")]
    aged(10)
    for_ever = TenantStateConfig(retention_days=None)
    assert await purge(tenants={ALICE: TenantStateConfig(retention_days=30)}, retention_days=None) == 0
    assert await purge(tenants={ALICE: for_ever}, retention_days=5) == 1
    assert await is_there(client.conversations.retrieve(hers.id))
    assert not await is_there(clients("sk-bob").conversations.retrieve(his.id))
    assert await purge(tenants={ALICE: TenantStateConfig(retention_days=5)}, retention_days=None) == 1


@pytest.mark.parametrize("is_alone", [True, False])
async def test_running_turn_is_not_purged(
    client: AsyncOpenAI, purge: Purge, aged: Callable[[float], None], model: Model, is_alone: bool
) -> None:
    conversation: Any = {} if is_alone else {"conversation": (await client.conversations.create()).id}
    model.may_go_on.clear()
    turn = await client.responses.create(model="m", input="Hello", stream=True, **conversation)
    created = await anext(aiter(turn))
    aged(100)
    gone = await purge(retention_days=1)
    model.may_go_on.set()
    assert gone == 0
    assert [event.type async for event in turn][-1] == "response.completed"
    assert (await client.responses.retrieve(created.response.id)).status == "completed"


async def test_more_than_a_batch_is_purged(state: ChatState, purge: Purge, aged: Callable[[float], None]) -> None:
    for _ in range(DELETED_AT_ONCE + 1):
        await state.stores.conversations.create("alice", {}, [])
    aged(2)
    assert await purge(retention_days=1) == DELETED_AT_ONCE + 1


def slow_down(postgres: str, change: str, table: str, seconds: float) -> None:
    """Each such change of a row."""
    with psycopg.connect(postgres) as connection:
        connection.execute(
            "CREATE FUNCTION take_long() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN PERFORM pg_sleep({seconds}); RETURN coalesce(NEW, OLD); END $$"
        )
        connection.execute(f"CREATE TRIGGER slow BEFORE {change} ON {table} FOR EACH ROW EXECUTE FUNCTION take_long()")


async def test_batch_that_takes_too_long_is_purged_in_smaller_ones(
    state: ChatState, postgres: str, purge: Purge, aged: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(DELETED_AT_ONCE):
        made = await state.stores.conversations.create("alice", {}, [])
        await state.stores.conversations.delete("alice", made.id, [])
    aged(31)
    slow_down(postgres, "DELETE", "conversations", 0.05)
    monkeypatch.setattr(database, "SETTINGS", "-c statement_timeout=2000")
    assert await purge() == DELETED_AT_ONCE


async def test_events_that_take_too_long_are_purged_in_smaller_batches(
    client: AsyncOpenAI, postgres: str, purge: Purge, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        await client.responses.create(model="m", input="Hello")
    monkeypatch.setattr(retention, "KEEP_EVENTS", timedelta(0))
    slow_down(postgres, "UPDATE", "responses", 0.3)
    monkeypatch.setattr(database, "SETTINGS", "-c statement_timeout=1000")
    assert await purge() == 5
    assert num_rows(postgres, "response_events") == 0

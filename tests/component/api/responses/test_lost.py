"""Responses that have lost whoever generated them, and admissions that nobody heard of."""

import asyncio
import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import openai
import psycopg
import pytest
from openai import InternalServerError
from openai.types.conversations import Message

from api.state.event_streams import event_writer, orphans
from api.state.lifecycle import ChatState
from api.state.postgres.stores.responses import GENERATION_CLAIM
from cluster.config.state import StateConfig
from cluster.errors import StateUnavailable
from tests.component.answering import Model, texts
from tests.component.api.responses.streams import cut_after, numbers, resumed
from tests.component.app_with_postgres import ClientOf
from tests.expected import of_kind, present


@pytest.fixture
def knows_that_nobody_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphans, "GENERATION_CLAIM", timedelta(0))


@pytest.fixture
def has_short_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_writer, "GENERATION_CLAIM", timedelta(seconds=0.5))


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(1000):
        if is_so():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError


async def lose(state: ChatState, postgres: str) -> None:
    """The servers of all running responses. They live, and renew their generation claims meanwhile."""
    for _ in range(1000):  # those that are just being written to are passed over
        with psycopg.connect(postgres) as connection:
            connection.execute("SELECT set_config('app.tenant_id', '*', true)")
            connection.execute("UPDATE responses SET lease_until = now() - %s", [GENERATION_CLAIM])
        if await state.stores.orphans.end():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError


@pytest.mark.usefixtures("knows_that_nobody_comes_back")
async def test_lost_turn_keeps_its_partial_answer_and_locks_nothing(
    client: openai.AsyncOpenAI, model: Model, state: ChatState, postgres: str
) -> None:
    model.may_go_on.clear()
    conversation = await client.conversations.create()
    stream = await client.responses.create(model="m", input="Hello", conversation=conversation.id, stream=True)
    async for event in stream:
        if event.type == "response.output_text.delta":
            break
    await lose(state, postgres)
    (lost,) = [item async for item in client.conversations.items.list(conversation.id, limit=1)][:1]
    assert of_kind(Message, lost).status == "incomplete"
    await client.responses.create(model="m", input="Still there?", conversation=conversation.id)
    assert await texts(client, conversation.id) == ["Hello", "Answer ", "Still there?", "Answer 2"]
    assert [message["content"] for message in model.chats[1]] == ["Hello", "Answer ", "Still there?"]

    model.may_go_on.set()  # it was slow, not lost: what it says now counts no more
    assert [event.type async for event in stream][-1] == "response.failed"
    assert len(await texts(client, conversation.id)) == 4


@pytest.mark.usefixtures("knows_that_nobody_comes_back")
async def test_stream_of_a_lost_response_ends(
    client: openai.AsyncOpenAI, model: Model, state: ChatState, postgres: str, elsewhere: openai.AsyncOpenAI
) -> None:
    model.may_go_on.clear()
    made = await client.responses.create(model="m", input="Hello", background=True)
    waiting = asyncio.create_task(resumed(elsewhere, made.id))
    await model.asked(1)
    await lose(state, postgres)
    events = await waiting
    assert numbers(events) == list(range(len(events))) and events[-1].type == "response.failed"
    model.may_go_on.set()


async def test_after_an_outage_others_have_the_time_to_renew_their_claims(
    client: openai.AsyncOpenAI, model: Model, state: ChatState, postgres: str
) -> None:
    model.may_go_on.clear()
    made = await client.responses.create(model="m", input="Hello", background=True)
    with psycopg.connect(postgres) as connection:
        connection.execute("SELECT set_config('app.tenant_id', '*', true)")
        connection.execute("UPDATE responses SET lease_until = now() - %s", [GENERATION_CLAIM])
    assert await state.stores.orphans.end() == 0
    assert (await client.responses.retrieve(made.id)).status in ("queued", "in_progress")
    model.may_go_on.set()
    assert (await resumed(client, made.id))[-1].type == "response.completed"


@pytest.mark.usefixtures("knows_that_nobody_comes_back")
async def test_tenant_that_waits_for_a_lock_keeps_no_lost_response_from_ending(
    client: openai.AsyncOpenAI, model: Model, state: ChatState, postgres: str
) -> None:
    model.may_go_on.clear()
    lost = await client.responses.create(model="m", input="Hello", background=True)
    await model.asked(1)
    conversation = await client.conversations.create()
    with psycopg.connect(postgres) as other:
        other.execute("SELECT set_config('app.tenant_id', '*', true)")
        other.execute("SELECT 1 FROM conversations FOR UPDATE")
        with pytest.raises(InternalServerError):
            await client.conversations.update(conversation.id, metadata={})
    await lose(state, postgres)
    assert (await client.responses.retrieve(lost.id)).status == "failed"
    model.may_go_on.set()


@pytest.mark.usefixtures("knows_that_nobody_comes_back")
async def test_server_that_was_lost_meanwhile_is_noticed(state: ChatState, postgres: str) -> None:
    with psycopg.connect(postgres) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
    with pytest.raises(StateUnavailable):
        await state.look()
    assert math.isinf(present(state._database).reachable_since)
    await state.look()
    assert math.isfinite(present(state._database).reachable_since)


@pytest.mark.usefixtures("knows_that_nobody_comes_back")
async def test_response_that_cannot_be_read_keeps_no_other_from_ending(
    client: openai.AsyncOpenAI, clients: ClientOf, model: Model, state: ChatState, postgres: str
) -> None:
    model.may_go_on.clear()
    model.waiting = {1, 2}
    conversation = await client.conversations.create()
    broken = await clients("sk-bob").responses.create(model="m", input="Hello", background=True)
    lost = await client.responses.create(model="m", input="Hello", background=True, conversation=conversation.id)
    await model.asked(2)
    with psycopg.connect(postgres) as connection:
        connection.execute("SELECT set_config('app.tenant_id', '*', true)")
        connection.execute(
            "UPDATE responses SET body = 'x', lease_until = now() - interval '1 h' WHERE id = %s", [broken.id]
        )
    await lose(state, postgres)
    assert (await client.responses.retrieve(lost.id)).status == "failed"
    model.may_go_on.set()


@pytest.mark.usefixtures("has_short_claims")
async def test_clients_that_keep_postgresql_busy_cost_no_turn_its_claim(
    client: openai.AsyncOpenAI, clients: ClientOf, model: Model, postgres: str
) -> None:
    model.may_go_on.clear()
    response, _ = await cut_after(client, 3)
    with psycopg.connect(postgres) as connection:
        connection.execute("SELECT set_config('app.tenant_id', '*', true)")

        def seen() -> tuple[int, Any]:
            """How many clients wait, and until when the generation claim lasts."""
            (found,) = connection.execute(
                "SELECT (SELECT count(*) FROM pg_locks WHERE NOT granted), lease_until FROM responses"
            ).fetchall()
            return found

        connection.execute("LOCK TABLE conversations")
        several = [client, clients("sk-bob")]  # no tenant has more than half of the connections
        waiting = [asyncio.create_task(one.conversations.retrieve("conv_x")) for one in several * 10]
        await until(lambda: seen()[0] == StateConfig().max_connections)
        _, claim = seen()
        await until(lambda: seen()[1] != claim)
        assert seen()[0] == StateConfig().max_connections
    model.may_go_on.set()
    await asyncio.wait(waiting)
    assert (await resumed(client, response))[-1].type == "response.completed"
    for one in waiting:
        assert one.exception() is not None


async def test_admission_that_nobody_heard_of_leaves_nothing(
    client: openai.AsyncOpenAI, state: ChatState, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = state.stores.responses
    admit = store.admit

    async def admitted_and_lost(*admission: Any) -> None:
        await admit(*admission)
        raise StateUnavailable("lost", 1.0)

    conversation = await client.conversations.create()
    with monkeypatch.context() as patched:
        patched.setattr(store, "admit", admitted_and_lost)
        with pytest.raises(InternalServerError):
            await client.responses.create(model="m", input="Hello", conversation=conversation.id)
    for _ in range(1000):
        if not await texts(client, conversation.id):
            break
        await asyncio.sleep(0.01)
    await client.responses.create(model="m", input="Hello", conversation=conversation.id)
    assert await texts(client, conversation.id) == ["Hello", "Answer 1"]

"""Streams that go on where they were cut, on any replica, and what is durable before it is seen."""

import asyncio
from datetime import timedelta

import openai
import psycopg
import pytest
from openai import BadRequestError, NotFoundError

from api.state.event_streams import event_writer
from api.state.lifecycle import ChatState
from tests.component.answering import Model
from tests.component.api.responses.streams import cut_after, numbers, resumed
from tests.component.app_with_postgres import ClientOf
from tests.component.openai_objects import id_of, response_of
from tests.expected import present


async def test_stream_goes_on_where_it_was_cut(client: openai.AsyncOpenAI, model: Model) -> None:
    model.may_go_on.clear()
    response, seen = await cut_after(client, 3)
    resuming = asyncio.create_task(resumed(client, response, after=2))
    model.may_go_on.set()
    rest = await resuming
    assert numbers(seen + rest) == list(range(len(seen + rest)))
    assert (rest[-1].type, rest[-1].response.output_text) == ("response.completed", "Answer 1")


async def test_stream_of_a_response_that_is_over_can_be_read_again(client: openai.AsyncOpenAI) -> None:
    stream = await client.responses.create(model="m", input="Hello", stream=True)
    told = [event async for event in stream]
    assert await resumed(client, response_of(told[0]).id) == told
    assert await resumed(client, response_of(told[0]).id, after=len(told) - 2) == told[-1:]
    for seen in (len(told) - 1, len(told) + 5):  # more than there is: it learns how it ended
        assert await resumed(client, response_of(told[0]).id, after=seen) == told[-1:]


async def test_stream_is_resumed_on_another_replica(
    client: openai.AsyncOpenAI, model: Model, elsewhere: openai.AsyncOpenAI
) -> None:
    model.may_go_on.clear()
    response, seen = await cut_after(client, 3)
    resuming = asyncio.create_task(resumed(elsewhere, response, after=2))
    model.may_go_on.set()
    rest = await resuming
    assert numbers(seen + rest) == list(range(len(seen + rest)))
    assert rest[-1].type == "response.completed"


async def test_what_a_client_has_seen_is_durable(client: openai.AsyncOpenAI, model: Model, postgres: str) -> None:
    model.may_go_on.clear()
    response, _ = await cut_after(client, 5)
    with psycopg.connect(postgres) as connection:
        connection.execute("SELECT set_config('app.tenant_id', '*', true)")
        (last,) = present(connection.execute("SELECT max(last_number) FROM response_events").fetchone())
        sealed = connection.execute("SELECT events FROM response_events").fetchall()
    assert last >= 4 and not any(b"Answer" in events for (events,) in sealed)
    model.may_go_on.set()
    await resumed(client, response)


async def test_unknown_response_has_no_stream(client: openai.AsyncOpenAI, clients: ClientOf) -> None:
    made = await client.responses.create(model="m", input="Hello")
    for who, response in ((client, "resp_x"), (clients("sk-bob"), made.id)):
        with pytest.raises(NotFoundError):
            await who.responses.retrieve(response, stream=True)


@pytest.mark.parametrize("query", ["stream=maybe", "stream=true&starting_after=-1", "stream=true&starting_after=x"])
async def test_bad_place_to_resume_at_is_refused(client: openai.AsyncOpenAI, query: str) -> None:
    made = await client.responses.create(model="m", input="Hello")
    with pytest.raises(BadRequestError):
        await client.get(f"/responses/{made.id}?{query}", cast_to=object)


async def test_stream_does_not_wait_for_a_slow_database_and_nothing_is_lost(
    client: openai.AsyncOpenAI, model: Model, postgres: str
) -> None:
    model.may_go_on.clear()
    stream = aiter(await client.responses.create(model="m", input="Hello", stream=True))
    first = await anext(stream)
    with psycopg.connect(postgres) as connection:
        connection.execute("SELECT set_config('app.tenant_id', '*', true)")
        connection.execute("SELECT FROM responses FOR UPDATE")
        model.may_go_on.set()
        rest = [event async for event in stream]
        assert rest[-1].type == "response.completed"
    for _ in range(1000):
        if (found := await client.responses.retrieve(response_of(first).id)).status == "completed":
            break
        await asyncio.sleep(0.01)
    assert found == rest[-1].response
    assert numbers(await resumed(client, found.id)) == numbers([first, *rest])


async def test_deleted_answer_is_gone_from_the_stream_too(client: openai.AsyncOpenAI) -> None:
    conversation = await client.conversations.create()
    made = await client.responses.create(model="m", input="Hello", conversation=conversation.id)
    await client.conversations.items.delete(id_of(made.output[0]), conversation_id=conversation.id)
    with pytest.raises(BadRequestError) as caught:
        await client.responses.retrieve(made.id, stream=True)
    assert caught.value.code == "events_expired"


async def test_events_are_kept_for_a_while_after_the_end(
    client: openai.AsyncOpenAI, model: Model, state: ChatState, postgres: str
) -> None:
    model.may_go_on.clear()
    running, _ = await cut_after(client, 3)
    over = await client.responses.create(model="m", input="Hello")
    assert await state.stores.retention.run() == 0
    assert numbers(await resumed(client, over.id))[0] == 0
    with psycopg.connect(postgres) as connection:
        connection.execute("SELECT set_config('app.tenant_id', '*', true)")
        connection.execute("UPDATE responses SET finished_at = finished_at - %s", [timedelta(hours=1)])
    assert await state.stores.retention.run() == 1
    with pytest.raises(BadRequestError) as caught:
        await resumed(client, over.id)
    assert caught.value.code == "events_expired"
    model.may_go_on.set()
    assert numbers(await resumed(client, running))[0] == 0


async def test_what_has_piled_up_is_written_little_by_little(
    client: openai.AsyncOpenAI, model: Model, state: ChatState, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_writer, "BATCH_BYTES", 1)
    stream = await client.responses.create(model="m", input="Hello", stream=True)
    told = [event async for event in stream]
    assert await resumed(client, response_of(told[-1]).id) == told

"""Responses over a WebSocket, with OpenAI's official client and PostgreSQL."""

from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.resources.responses.responses import AsyncResponsesConnection

from tests.component.answering import Model
from tests.component.app_with_postgres import ClientOf


async def answered(connection: AsyncResponsesConnection, **message: Any) -> list[Any]:
    """The events of one response, or one error."""
    asked: Any = {"type": "response.create", "model": "m", **message}
    await connection.send(asked)
    events: list[Any] = []
    async for event in connection:
        events.append(event)
        if event.type in ("response.completed", "response.incomplete", "response.failed", "error"):
            break
    return events


async def test_same_events_as_server_sent_ones(client: AsyncOpenAI) -> None:
    streamed = [event.type async for event in await client.responses.create(model="m", input="Hello", stream=True)]
    async with client.responses.connect() as connection:
        events = await answered(connection, input="Hello")
    assert [event.type for event in events] == streamed
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].response.output_text == "Answer 2"


async def test_stored_responses_are_continued_after_a_reconnect(client: AsyncOpenAI, model: Model) -> None:
    async with client.responses.connect() as connection:
        first = (await answered(connection, input="one"))[-1].response
        second = (await answered(connection, input="two", previous_response_id=first.id))[-1].response
    async with client.responses.connect() as connection:
        third = (await answered(connection, input="three", previous_response_id=second.id))[-1].response
    assert third.previous_response_id == second.id
    assert [message["content"] for message in model.chats[-1]] == ["one", "Answer 1", "two", "Answer 2", "three"]
    assert (await client.responses.retrieve(third.id)).output_text == "Answer 3"


async def test_unstored_responses_are_continued_on_their_connection_alone(client: AsyncOpenAI, model: Model) -> None:
    async with client.responses.connect() as connection:
        first = (await answered(connection, input="one", store=False))[-1].response
        second = (await answered(connection, input="two", store=False, previous_response_id=first.id))[-1].response
        assert second.previous_response_id == first.id
        assert [message["content"] for message in model.chats[-1]] == ["one", "Answer 1", "two"]
        older = (await answered(connection, input="three", store=False, previous_response_id=first.id))[-1]
        assert (older.error.code, older.status) == ("previous_response_not_found", 400)
        third = (await answered(connection, input="three", store=False, previous_response_id=second.id))[-1]
        assert third.response.output_text == "Answer 3"
    async with client.responses.connect() as connection:
        gone = (await answered(connection, input="four", previous_response_id=third.response.id))[-1]
        assert gone.error.code == "previous_response_not_found"
        again = (await answered(connection, input="the whole input", store=False))[-1]
        assert again.response.output_text == "Answer 4"


async def test_stored_response_after_unstored_ones_stores_the_whole_chain(client: AsyncOpenAI, model: Model) -> None:
    async with client.responses.connect() as connection:
        base = (await answered(connection, input="one"))[-1].response
        middle = (await answered(connection, input="two", store=False, previous_response_id=base.id))[-1].response
        last = (await answered(connection, input="three", previous_response_id=middle.id))[-1].response
        asked = ["one", "Answer 1", "two", "Answer 2", "three"]
        assert [message["content"] for message in model.chats[-1]] == asked
    assert (last.previous_response_id, middle.previous_response_id) == (base.id, base.id)
    after = await client.responses.create(model="m", input="four", previous_response_id=last.id)
    assert [message["content"] for message in model.chats[-1]] == [*asked, "Answer 3", "four"]
    assert after.previous_response_id == last.id


async def test_unstored_response_in_a_conversation_is_not_remembered(client: AsyncOpenAI, model: Model) -> None:
    conversation = await client.conversations.create(items=[{"role": "user", "content": "before"}])
    async with client.responses.connect() as connection:
        before = (await answered(connection, input="zero", store=False))[-1].response
        held = {"store": False, "conversation": conversation.id}
        first = (await answered(connection, input="one", **held))[-1].response
        assert [message["content"] for message in model.chats[-1]] == ["before", "one"]
        for response in (first, before):  # and what was remembered is not, either
            refused = (await answered(connection, input="two", store=False, previous_response_id=response.id))[-1]
            assert (refused.error.code, refused.status) == ("previous_response_not_found", 400)
    items = await client.conversations.items.list(conversation.id)
    assert len(items.data) == 1


async def test_prepared_response_has_no_output_and_is_continued(client: AsyncOpenAI, model: Model) -> None:
    async with client.responses.connect() as connection:
        prepared = (await answered(connection, input="one", generate=False))[-1].response
        assert (prepared.status, prepared.output, prepared.usage.output_tokens) == ("completed", [], 0)
        assert not model.bodies
        await answered(connection, input="two", previous_response_id=prepared.id)
        assert [message["content"] for message in model.chats[-1]] == ["one", "two"]


async def test_failed_turn_lets_its_connection_forget_what_it_followed(client: AsyncOpenAI, model: Model) -> None:
    async with client.responses.connect() as connection:
        first = (await answered(connection, input="one", store=False))[-1].response
        follow = {"store": False, "previous_response_id": first.id}
        refused = (await answered(connection, input="two", temperature="hot", **follow))[-1]
        assert (refused.error.code, refused.error.param, refused.status) == ("invalid_type", "temperature", 400)
        assert (await answered(connection, input="two", **follow))[-1].error.code == "previous_response_not_found"


async def test_result_of_a_call_that_was_never_made_is_a_failed_turn(client: AsyncOpenAI, model: Model) -> None:
    result = {"type": "function_call_output", "call_id": "call_1", "output": "It rains."}
    async with client.responses.connect() as connection:
        first = (await answered(connection, input="one", store=False))[-1].response
        follow = {"store": False, "previous_response_id": first.id}
        refused = (await answered(connection, input=[result], **follow))[-1]
        assert (refused.error.param, refused.status) == ("input", 400)
        assert "No tool call found" in refused.error.message
        assert (await answered(connection, input="two", **follow))[-1].error.code == "previous_response_not_found"


async def test_responses_of_others_are_not_continued(clients: ClientOf) -> None:
    async with clients("sk-alice").responses.connect() as connection:
        mine = (await answered(connection, input="one"))[-1].response
    async with clients("sk-bob").responses.connect() as connection:
        refused = (await answered(connection, input="two", previous_response_id=mine.id))[-1]
        assert refused.error.code == "previous_response_not_found"


async def test_stored_response_of_a_lost_connection_is_found_by_its_id(client: AsyncOpenAI, model: Model) -> None:
    model.may_go_on.clear()
    async with client.responses.connect() as connection:
        await connection.send({"type": "response.create", "model": "m", "input": "one"})
        created: Any = await connection.recv()
    model.may_go_on.set()
    stream = await client.responses.retrieve(created.response.id, stream=True, starting_after=created.sequence_number)
    events = [event async for event in stream]
    assert events[0].sequence_number == created.sequence_number + 1
    assert events[-1].type == "response.completed"


@pytest.mark.parametrize(
    ("message", "param"), [({"background": True}, "background"), ({"stream_id": "x" * 257}, "stream_id")]
)
async def test_what_a_socket_does_not_have_is_refused(client: AsyncOpenAI, message: dict[str, Any], param: str) -> None:
    async with client.responses.connect() as connection:
        refused = (await answered(connection, input="one", **message))[-1]
        assert (refused.type, refused.status, refused.error.param) == ("error", 400, param)
        assert (await answered(connection, input="one"))[-1].response.status == "completed"


async def test_events_name_the_stream_of_their_message(client: AsyncOpenAI) -> None:
    async with client.responses.connect() as connection:
        events = await answered(connection, input="one", stream_id="main")
        assert {event.stream_id for event in events} == {"main"}


async def test_tools_of_created_event_are_those_that_the_model_is_given(client: AsyncOpenAI) -> None:
    look = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}
    async with client.responses.connect() as connection:
        created, *_ = await answered(connection, input="one", tools=[{"type": "web_search"}, look])
        assert [tool.name for tool in created.response.tools] == ["look"]

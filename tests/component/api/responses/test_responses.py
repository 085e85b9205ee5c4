"""Responses over HTTP, in a real PostgreSQL, with the official client in strict mode; the model is a stand-in."""

import asyncio
from typing import Any

import openai
import psycopg
import pytest
from openai import BadRequestError, ConflictError, InternalServerError, NotFoundError, RateLimitError
from openai.types.responses import EasyInputMessageParam, ResponseErrorEvent

from cluster.errors import TooManyRequests
from tests.component.answering import Model, texts
from tests.component.app_with_postgres import ClientOf, clients_of
from tests.component.openai_objects import first_text_of, response_of
from tests.expected import of_kind, present

NESTED: dict[str, Any] = {}
for _ in range(600):
    NESTED = {"a": NESTED}
HELLO: EasyInputMessageParam = {"type": "message", "role": "user", "content": "Hello"}
CALL: dict[str, Any] = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
MANY_PARTS = [{"type": "input_text", "text": ""}] * 2001


async def test_response_answers_and_is_kept(client: openai.AsyncOpenAI, model: Model) -> None:
    made = await client.responses.create(model="m", input="Hello", metadata={"topic": "demo"}, temperature=0.5)
    assert (made.output_text, made.status, present(made.usage).total_tokens) == ("Answer 1", "completed", 7)
    assert (made.metadata, made.temperature) == ({"topic": "demo"}, 0.5)
    assert model.chats == [[{"role": "user", "content": "Hello"}]]
    assert await client.responses.retrieve(made.id) == made
    (asked,) = [item async for item in client.responses.input_items.list(made.id)]
    assert first_text_of(asked) == "Hello"


async def test_stream_tells_the_events_of_what_is_kept(client: openai.AsyncOpenAI) -> None:
    stream = await client.responses.create(model="m", input="Hello", stream=True)
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Answer 1"
    assert await client.responses.retrieve(response_of(events[-1]).id) == response_of(events[-1])


async def test_turn_follows_the_previous_response(client: openai.AsyncOpenAI, model: Model) -> None:
    first = await client.responses.create(model="m", input="One", instructions="Be brief.")
    second = await client.responses.create(model="m", input="Two", previous_response_id=first.id)
    await client.responses.create(model="m", input="Three", previous_response_id=second.id)
    sibling = await client.responses.create(model="m", input="Other", previous_response_id=first.id)
    assert [message["content"] for message in model.chats[2]] == ["One", "Answer 1", "Two", "Answer 2", "Three"]
    assert [message["content"] for message in model.chats[3]] == ["One", "Answer 1", "Other"]
    assert sibling.previous_response_id == first.id


async def test_turn_joins_its_conversation(client: openai.AsyncOpenAI, model: Model) -> None:
    conversation = await client.conversations.create(items=[HELLO])
    made = await client.responses.create(model="m", input="Who are you?", conversation=conversation.id)
    assert present(made.conversation).id == conversation.id
    await client.responses.create(model="m", input="And I?", conversation=conversation.id)
    assert await texts(client, conversation.id) == ["Hello", "Who are you?", "Answer 1", "And I?", "Answer 2"]
    assert [message["content"] for message in model.chats[1]] == ["Hello", "Who are you?", "Answer 1", "And I?"]


async def test_branch_off_a_conversation_follows_what_its_answer_followed(
    client: openai.AsyncOpenAI, model: Model
) -> None:
    conversation = await client.conversations.create(items=[HELLO])
    answer_ = await client.responses.create(model="m", input="And then?", conversation=conversation.id)
    await client.responses.create(model="m", input="Later", conversation=conversation.id)
    branch = await client.responses.create(model="m", input="Or else?", previous_response_id=answer_.id)
    await client.responses.create(model="m", input="Then?", previous_response_id=branch.id)
    said = [message["content"] for message in model.chats[3]]
    assert said == ["Hello", "And then?", "Answer 1", "Or else?", "Answer 3", "Then?"]
    assert len(await texts(client, conversation.id)) == 5


async def test_responses_of_a_deleted_conversation_are_gone(client: openai.AsyncOpenAI) -> None:
    conversation = await client.conversations.create()
    made = await client.responses.create(model="m", input="Hello", conversation=conversation.id)
    await client.conversations.delete(conversation.id)
    for ask in (
        client.responses.retrieve(made.id),
        client.responses.create(model="m", input="x", previous_response_id=made.id),
    ):
        with pytest.raises(NotFoundError):
            await ask


async def test_response_that_is_being_generated_cannot_be_deleted(client: openai.AsyncOpenAI, model: Model) -> None:
    model.may_go_on.clear()
    stream = await client.responses.create(model="m", input="Hello", stream=True)
    created = await anext(aiter(stream))
    with pytest.raises(ConflictError):
        await client.responses.delete(response_of(created).id)
    model.may_go_on.set()
    assert [event.type async for event in stream][-1] == "response.completed"
    await client.responses.delete(response_of(created).id)


async def test_users_turn_is_durable_before_anything_is_generated(client: openai.AsyncOpenAI, model: Model) -> None:
    model.may_go_on.clear()
    conversation = await client.conversations.create()
    stream = await client.responses.create(model="m", input="Hello", conversation=conversation.id, stream=True)
    created = await anext(aiter(stream))
    assert await texts(client, conversation.id) == ["Hello"]
    assert (await client.responses.retrieve(response_of(created).id)).status == "in_progress"
    with pytest.raises(ConflictError) as caught:
        await client.responses.create(model="m", input="Me too", conversation=conversation.id)
    assert caught.value.code == "conversation_locked"
    with pytest.raises(ConflictError) as caught:
        await client.responses.create(model="m", input="Me too", previous_response_id=response_of(created).id)
    assert caught.value.code == "previous_response_in_progress"
    model.may_go_on.set()
    assert [event.type async for event in stream][-1] == "response.completed"
    assert await texts(client, conversation.id) == ["Hello", "Answer 1"]


async def test_turn_whose_client_leaves_is_finished(client: openai.AsyncOpenAI, model: Model) -> None:
    model.may_go_on.clear()
    conversation = await client.conversations.create()
    stream = await client.responses.create(model="m", input="Hello", conversation=conversation.id, stream=True)
    created = await anext(aiter(stream))
    await stream.close()
    model.may_go_on.set()
    for _ in range(1000):
        if (await client.responses.retrieve(response_of(created).id)).status != "in_progress":
            break
        await asyncio.sleep(0.01)
    assert await texts(client, conversation.id) == ["Hello", "Answer 1"]


async def test_unstored_response_is_forgotten(client: openai.AsyncOpenAI, model: Model) -> None:
    conversation = await client.conversations.create(items=[HELLO])
    made = await client.responses.create(model="m", input="Who?", conversation=conversation.id, store=False)
    assert [message["content"] for message in model.chats[0]] == ["Hello", "Who?"]
    with pytest.raises(NotFoundError):
        await client.responses.retrieve(made.id)
    assert await texts(client, conversation.id) == ["Hello"]


async def test_deleted_response_is_gone_but_not_from_its_conversation(client: openai.AsyncOpenAI) -> None:
    conversation = await client.conversations.create()
    made = await client.responses.create(model="m", input="Hello", conversation=conversation.id)
    alone = await client.responses.create(model="m", input="Hello")
    for response in (made, alone):
        await client.responses.delete(response.id)
        for ask in (client.responses.retrieve(response.id), client.responses.delete(response.id)):
            with pytest.raises(NotFoundError) as caught:
                await ask
            assert caught.value.code == "response_not_found"
    assert await texts(client, conversation.id) == ["Hello", "Answer 1"]


async def test_another_tenants_responses_are_not_found(client: openai.AsyncOpenAI, clients: ClientOf) -> None:
    made = await client.responses.create(model="m", input="Hello")
    conversation = await client.conversations.create()
    other = clients("sk-bob")
    for ask in (
        other.responses.retrieve(made.id),
        other.responses.delete(made.id),
        other.responses.create(model="m", input="x", previous_response_id=made.id),
        other.responses.create(model="m", input="x", conversation=conversation.id),
    ):
        with pytest.raises(NotFoundError):
            await ask


async def test_refused_turn_leaves_nothing_so_that_it_can_be_sent_again(
    client: openai.AsyncOpenAI, model: Model
) -> None:
    conversation = await client.conversations.create()
    model.error = TooManyRequests("busy", 3.0)
    with pytest.raises(RateLimitError) as caught:
        await client.responses.create(model="m", input="Hello", conversation=conversation.id)
    assert caught.value.response.headers["retry-after"] == "3"
    assert await texts(client, conversation.id) == []
    model.error = None
    await client.responses.create(model="m", input="Hello", conversation=conversation.id)
    assert await texts(client, conversation.id) == ["Hello", "Answer 2"]


async def test_refusal_after_a_long_silence_is_an_event(model: Model) -> None:
    model.may_go_on.clear()
    model.error = TooManyRequests("busy", 3.0)
    async with clients_of(None, model, keep_alive_s=0.2) as clients:
        stream = await clients("sk-alice").responses.create(model="m", input="Hello", store=False, stream=True)
        model.may_go_on.set()
        (event,) = [event async for event in stream]
    error = of_kind(ResponseErrorEvent, event)
    assert (error.code, error.message) == ("engine_overloaded", "busy")


async def test_texts_of_responses_are_encrypted_at_rest(client: openai.AsyncOpenAI, postgres: str) -> None:
    await client.responses.create(model="m", input="a private matter", instructions="a private wish")
    with psycopg.connect(postgres) as connection:
        connection.execute("SELECT set_config('app.tenant_id', '*', true)")
        rows = connection.execute("SELECT body FROM responses UNION ALL SELECT body FROM items").fetchall()
    assert len(rows) == 3 and not any(b"private" in body for (body,) in rows)


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"input": "x"}, "model", "missing_required_parameter"),
        ({"model": "m"}, "input", "missing_required_parameter"),
        ({"model": "m", "input": 1}, "input", "invalid_type"),
        ({"model": "m", "input": [{"role": "user"}]}, "input[0].content", "invalid_value"),
        (
            {"model": "m", "input": "x", "conversation": "a", "previous_response_id": "b"},
            "conversation",
            "invalid_value",
        ),
        ({"model": "m", "input": "x", "truncation": "sometimes"}, "truncation", "invalid_value"),
        ({"model": "m", "input": "x", "tools": [{"type": "code_interpreter"}]}, "tools[0].type", "unsupported_value"),
        ({"model": "m", "input": "x", "text": {"format": {"type": "xml"}}}, "text.format", "unsupported_value"),
        ({"model": "m", "input": "x", "store": "yes"}, "store", "invalid_type"),
        ({"model": "m", "input": "x", "user": 1}, "user", "invalid_type"),
        ({"model": "m", "input": "x", "tool_choice": NESTED}, "tool_choice", "invalid_value"),
        ({"model": "m", "input": [{"role": "user", "content": "x", "more": NESTED}]}, "input[0]", "invalid_value"),
        (
            {"model": "m", "input": [{"role": "user", "content": MANY_PARTS}]},
            "input[0].content",
            "array_above_max_length",
        ),
        (
            {"model": "m", "input": [{"type": "function_call_output", "call_id": "c", "output": MANY_PARTS}]},
            "input[0].output",
            "array_above_max_length",
        ),
        ({"model": "m", "input": "x", "temperature": True}, "temperature", "invalid_type"),
        ({"model": "m", "input": [{"type": []}]}, "input[0].type", "unsupported_value"),
        ({"model": "m", "input": [{"role": "user", "content": "x", "status": {}}]}, "input[0].status", "invalid_value"),
        ({"model": "m", "input": "x", "colour": "red"}, "colour", "unknown_parameter"),
    ],
)
async def test_bad_input_is_told_where_it_is_bad(
    client: openai.AsyncOpenAI, model: Model, body: dict[str, Any], param: str, code: str
) -> None:
    with pytest.raises(BadRequestError) as caught:
        await client.post("/responses", cast_to=object, body=body)
    assert (caught.value.param, caught.value.code) == (param, code)
    assert not model.bodies


@pytest.mark.parametrize("truncation", ["disabled", "auto"])
@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": [{"type": "input_image", "image_url": "data:,", "detail": "auto", "text": 5}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No", "text": 5}]},
        {**CALL, "content": [1]},
        {"type": "function_call_output", "call_id": "c", "output": "x", "content": [{"a": 1}]},
    ],
)
async def test_fields_that_are_not_known_are_left_out(
    client: openai.AsyncOpenAI, item: dict[str, Any], truncation: str
) -> None:
    question = {"role": "user", "content": "And now?"}
    request: dict[str, Any] = {"model": "m", "input": [CALL, item, question], "truncation": truncation}
    made = await client.responses.create(**request)
    assert made.output_text.startswith("Answer")
    kept = [one.model_dump() async for one in client.responses.input_items.list(made.id, order="asc")][1]
    assert "content" not in kept or all(part.get("text") != 5 for part in kept["content"])


async def test_long_input_is_answered(client: openai.AsyncOpenAI) -> None:
    made = await client.responses.create(model="m", input=[{"role": "user", "content": "x"}] * 600)
    assert made.output_text == "Answer 1"


async def test_text_that_cannot_be_stored_is_refused(client: openai.AsyncOpenAI) -> None:
    for path, body in (
        ("/responses", {"model": "m", "input": "x", "metadata": {"a": "\0"}, "conversation": "conv_\0"}),
        ("/conversations", {"metadata": {"a": "\0"}}),
        ("/conversations", {"user": "\0"}),
        ("/conversations/conv_%00", {"metadata": {}}),
    ):
        with pytest.raises(BadRequestError):
            await client.post(path, cast_to=object, body=body)


async def test_unknown_history_is_not_found(client: openai.AsyncOpenAI) -> None:
    several: list[dict[str, Any]] = [{"conversation": "conv_x"}, {"previous_response_id": "resp_x"}]
    for follows in several:
        with pytest.raises(NotFoundError):
            await client.responses.create(model="m", input="x", **follows)


async def test_without_a_database_unstored_responses_are_served(model: Model) -> None:
    async with clients_of(None, model) as clients:
        client = clients("sk-alice")
        assert (await client.responses.create(model="m", input="x", store=False)).output_text == "Answer 1"
        with pytest.raises(InternalServerError) as caught:
            await client.responses.create(model="m", input="x")
        assert (caught.value.status_code, caught.value.code) == (503, "state_unavailable")


async def test_page_after_an_item_of_something_else_is_not_found(client: openai.AsyncOpenAI) -> None:
    made = await client.responses.create(model="m", input="Hello")
    (asked,) = [item async for item in client.responses.input_items.list(made.id)]
    assert [item async for item in client.responses.input_items.list(made.id, after=asked.id)] == []
    with pytest.raises(NotFoundError):
        await client.responses.input_items.list(made.id, after="msg_x")

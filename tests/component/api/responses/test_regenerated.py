"""Responses that are generated anew: siblings, and what becomes of the conversation."""

from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, ConflictError, NotFoundError

from cluster.errors import TooManyRequests
from tests.component.answering import Model, texts
from tests.component.openai_objects import id_of


async def again(client: AsyncOpenAI, response: str, **overrides: Any) -> Any:
    return await client.post(f"/responses/{response}/regenerate", cast_to=object, body=overrides)


async def test_regenerated_answer_is_a_sibling_and_the_conversation_goes_on_from_it(
    client: AsyncOpenAI, model: Model
) -> None:
    conversation = await client.conversations.create()
    first = await client.responses.create(model="m", input="One", conversation=conversation.id, temperature=0.5)
    await client.responses.create(model="m", input="Two", conversation=conversation.id)
    sibling = await again(client, first.id, temperature=0.7)
    assert sibling["metadata"] == {"regenerated_from": first.id} and sibling["temperature"] == 0.7
    assert model.chats[2] == [{"role": "user", "content": "One"}]
    assert await texts(client, conversation.id) == ["One", "Answer 3"]
    await client.responses.create(model="m", input="Then?", conversation=conversation.id)
    assert [message["content"] for message in model.chats[3]] == ["One", "Answer 3", "Then?"]

    branch = await client.responses.create(model="m", input="Or?", previous_response_id=first.id)
    assert [message["content"] for message in model.chats[4]] == ["One", "Answer 1", "Or?"]
    assert (await client.responses.retrieve(first.id)).output_text == "Answer 1"
    assert branch.conversation is None


async def test_response_with_all_the_metadata_it_may_have_can_be_regenerated(client: AsyncOpenAI) -> None:
    full = {str(number): "" for number in range(16)}
    first = await client.responses.create(model="m", input="One", metadata=full)
    second = await again(client, first.id)
    assert second["metadata"] == {**full, "regenerated_from": first.id}
    assert (await again(client, second["id"]))["metadata"] == {**full, "regenerated_from": second["id"]}
    with pytest.raises(BadRequestError):
        await again(client, first.id, metadata={**full, "more": ""})


async def test_first_try_can_be_regenerated_again_but_not_what_followed_it(client: AsyncOpenAI) -> None:
    conversation = await client.conversations.create()
    first = await client.responses.create(model="m", input="One", conversation=conversation.id)
    second = await client.responses.create(model="m", input="Two", conversation=conversation.id)
    await again(client, first.id)
    await again(client, first.id)
    assert await texts(client, conversation.id) == ["One", "Answer 4"]
    with pytest.raises(ConflictError) as caught:
        await again(client, second.id)
    assert caught.value.code == "response_superseded"


async def test_regeneration_that_is_refused_changes_nothing(client: AsyncOpenAI, model: Model) -> None:
    conversation = await client.conversations.create()
    first = await client.responses.create(model="m", input="One", conversation=conversation.id)
    model.error = TooManyRequests("busy", 3.0)
    with pytest.raises(Exception, match="busy"):
        await again(client, first.id)
    assert await texts(client, conversation.id) == ["One", "Answer 1"]


async def test_regeneration_outside_of_a_conversation_follows_the_same_response(
    client: AsyncOpenAI, model: Model
) -> None:
    first = await client.responses.create(model="m", input="One")
    second = await client.responses.create(model="m", input="Two", previous_response_id=first.id)
    sibling = await again(client, second.id)
    assert [message["content"] for message in model.chats[2]] == ["One", "Answer 1", "Two"]
    assert sibling["previous_response_id"] == first.id
    with pytest.raises(BadRequestError):
        await again(client, second.id, input="Something else")
    with pytest.raises(NotFoundError):
        await again(client, "resp_x")


async def test_superseded_item_is_not_found_and_can_be_deleted(client: AsyncOpenAI) -> None:
    conversation = await client.conversations.create()
    made = await client.responses.create(model="m", input="Hello", conversation=conversation.id)
    (said, _) = [id_of(item) async for item in client.conversations.items.list(conversation.id, order="asc")]
    assert (await client.conversations.items.retrieve(said, conversation_id=conversation.id)).id == said
    await again(client, made.id)
    with pytest.raises(NotFoundError):
        await client.conversations.items.retrieve(said, conversation_id=conversation.id)
    await client.conversations.items.delete(said, conversation_id=conversation.id)


async def test_regenerated_is_asked_as_it_was_asked_first(client: AsyncOpenAI, model: Model) -> None:
    first = await client.responses.create(model="m", input="One", metadata={str(n): "x" for n in range(16)})
    second = await again(client, first.id)
    await again(client, second["id"])
    assert model.bodies[0] == model.bodies[1] == model.bodies[2]


async def test_regeneration_is_tried_once(client: AsyncOpenAI, model: Model) -> None:
    first = await client.responses.create(model="m", input="Hello")
    key = {"Idempotency-Key": "k"}
    path = f"/responses/{first.id}/regenerate"
    one: Any = await client.post(path, cast_to=object, body={}, options={"headers": key})
    other: Any = await client.post(path, cast_to=object, body={}, options={"headers": key})
    assert one["id"] == other["id"] != first.id and len(model.bodies) == 2

"""Items of the input that refer to what was said before, wherever it was."""

from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, InternalServerError, NotFoundError
from openai.types.responses import EasyInputMessageParam

from api.state.postgres.stores import items
from tests.component.answering import Model, texts
from tests.component.app_with_postgres import ClientOf, clients_of
from tests.component.openai_objects import first_text_of

QUESTION: EasyInputMessageParam = {"role": "user", "content": "And this?"}


def reference(item: str | None) -> Any:
    return {"type": "item_reference", "id": item}


async def asked(client: AsyncOpenAI, *given: Any, **request: Any) -> Any:
    return await client.responses.create(model="m", input=[*given, QUESTION], **request)


async def test_reference_stands_for_the_item_wherever_it_is(client: AsyncOpenAI, model: Model) -> None:
    said: EasyInputMessageParam = {"role": "user", "content": "Said in a conversation"}
    conversation = await client.conversations.create(items=[said])
    (item,) = (await client.conversations.items.list(conversation.id)).data
    first = await client.responses.create(model="m", input="Said to a response")
    (own,) = (await client.responses.input_items.list(first.id)).data
    given = [reference(own.id), {"id": first.output[0].id}, {"id": item.id, "type": None}]
    second = await asked(client, *given)
    contents = ["Said to a response", "Answer 1", "Said in a conversation", "And this?"]
    assert [message["content"] for message in model.chats[1]] == contents
    kept = (await client.responses.input_items.list(second.id, order="asc")).data
    assert [first_text_of(one) for one in kept] == contents
    assert not {one.id for one in kept} & {own.id, first.output[0].id, item.id}

    await client.responses.delete(first.id)  # the copies stay
    await client.responses.create(model="m", input="Then?", previous_response_id=second.id)
    assert [message["content"] for message in model.chats[2]] == [*contents, "Answer 2", "Then?"]


async def test_unstored_requests_may_refer_to_items(client: AsyncOpenAI, model: Model) -> None:
    first = await client.responses.create(model="m", input="Hello")
    await asked(client, reference(first.output[0].id), store=False)
    assert [message["content"] for message in model.chats[1]] == ["Answer 1", "And this?"]


async def test_conversations_take_references(client: AsyncOpenAI) -> None:
    first = await client.responses.create(model="m", input="Hello")
    made = await client.conversations.create(items=[reference(first.output[0].id)])
    (added,) = (await client.conversations.items.create(made.id, items=[reference(first.output[0].id)])).data
    assert first_text_of(added) == "Answer 1"
    assert await texts(client, made.id) == ["Answer 1", "Answer 1"]


async def test_items_of_others_and_deleted_ones_are_not_found(
    client: AsyncOpenAI, clients: ClientOf, model: Model
) -> None:
    theirs = await clients("sk-bob").responses.create(model="m", input="Private")
    gone = await client.responses.create(model="m", input="Gone")
    await client.responses.delete(gone.id)
    conversation = await client.conversations.create(items=[QUESTION])
    (item,) = (await client.conversations.items.list(conversation.id)).data
    await client.conversations.delete(conversation.id)
    other = await client.conversations.create()
    replaced = await client.responses.create(model="m", input="Replaced", conversation=other.id)
    await client.post(f"/responses/{replaced.id}/regenerate", body={}, cast_to=object)
    await asked(client, reference(replaced.output[0].id))
    await client.responses.delete(replaced.id)
    asked_before = len(model.bodies)
    for one in ("", "msg_x", theirs.output[0].id, gone.output[0].id, item.id, replaced.output[0].id):
        for options in ({}, {"store": False}):
            with pytest.raises(NotFoundError) as caught:
                await asked(client, reference(one), **options)
            assert (caught.value.param, caught.value.code) == ("input", "item_not_found")
            assert f"Item with id '{one}' not found." in str(caught.value)
        with pytest.raises(NotFoundError):
            await client.responses.compact(model="m", input=[reference(one)])
        with pytest.raises(NotFoundError):
            await client.conversations.create(items=[reference(one)])
    assert len(model.bodies) == asked_before


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"type": "item_reference"}, "input[0].id"),
        ({"type": "item_reference", "id": 1}, "input[0].id"),
        ({"id": None}, "input[0].id"),
    ],
)
async def test_bad_references_are_refused(client: AsyncOpenAI, model: Model, given: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        await asked(client, given)
    assert caught.value.param == param and not model.bodies


async def test_request_may_not_refer_to_more_than_it_could_have(
    client: AsyncOpenAI, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await client.responses.create(model="m", input="Hello")
    monkeypatch.setattr(items, "MAX_REFERRED_BYTES", 1000)
    await asked(client, reference(first.output[0].id))
    with pytest.raises(BadRequestError) as caught:
        await asked(client, *[reference(first.output[0].id)] * 10)
    assert caught.value.param == "input"


async def test_references_have_to_wait_for_the_database(model: Model) -> None:
    async with clients_of(None, model) as clients:
        with pytest.raises(InternalServerError) as caught:
            await asked(clients("sk-alice"), reference("msg_x"), store=False)
        assert caught.value.code == "state_unavailable"

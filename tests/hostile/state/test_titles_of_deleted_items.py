"""A title that the model has made of a conversation is deleted with any of the items that it was made of."""

from typing import Any

import openai
from openai import AsyncOpenAI

from api.identity.tenants import tenant_of_key
from api.state.lifecycle import ChatState
from tests.component.openai_objects import id_of

ALICE = tenant_of_key("sk-alice")


async def of_two_messages(
    client: AsyncOpenAI, state: ChatState, title: str | None = "Positive test"
) -> tuple[str, list[str]]:
    """A conversation with a title that was made of its items."""
    items: list[Any] = [
        {"type": "message", "role": "user", "content": "my test was positive"},
        {"type": "message", "role": "assistant", "content": "ok"},
    ]
    conversation = (await client.conversations.create(items=items)).id
    ids = [id_of(item) async for item in client.conversations.items.list(conversation, order="asc")]
    if title is not None:
        await state.stores.conversations.add_title(ALICE, conversation, title, ids)
    return conversation, ids


async def title_of(state: ChatState, conversation: str) -> str | None:
    return (await state.stores.conversations.get(ALICE, conversation)).title


async def test_title_leaves_with_any_item_that_it_was_made_of(client: openai.AsyncOpenAI, state: ChatState) -> None:
    conversation, ids = await of_two_messages(client, state)
    assert await title_of(state, conversation) == "Positive test"
    await client.conversations.items.delete(ids[0], conversation_id=conversation)
    assert await title_of(state, conversation) is None


async def test_title_stays_when_other_items_leave_and_where_a_client_has_set_it(
    client: openai.AsyncOpenAI, state: ChatState
) -> None:
    conversation, ids = await of_two_messages(client, state)
    (added,) = (await client.conversations.items.create(conversation, items=[{"role": "user", "content": "bye"}])).data
    await client.conversations.items.delete(id_of(added), conversation_id=conversation)
    assert await title_of(state, conversation) == "Positive test"
    await state.stores.conversations.update(ALICE, conversation, title="Mine")
    await client.conversations.items.delete(ids[0], conversation_id=conversation)
    assert await title_of(state, conversation) == "Mine"


async def test_title_is_not_made_of_what_is_gone(client: openai.AsyncOpenAI, state: ChatState) -> None:
    conversation, ids = await of_two_messages(client, state, title=None)
    await client.conversations.items.delete(ids[0], conversation_id=conversation)
    await state.stores.conversations.add_title(ALICE, conversation, "Positive test", ids)
    assert await title_of(state, conversation) is None

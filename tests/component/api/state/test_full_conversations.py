"""Conversations that have as many items as they may have."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError

from api.state.lifecycle import ChatState
from cluster.config.state import StateConfig
from tests.component.answering import Model, texts
from tests.component.app_with_postgres import clients_of
from tests.component.emptied import emptied
from tests.component.openai_objects import id_of
from tests.component.reached import reached

MOST = 4
HELLO: Any = {"type": "message", "role": "user", "content": "Hello"}


@pytest.fixture
async def client(postgres: str, redis: str, tmp_path: Path) -> AsyncIterator[AsyncOpenAI]:
    emptied(postgres)
    urls: dict[str, Any] = {"database_url": postgres, "redis_url": redis}
    state = ChatState(StateConfig(**urls, data_dir=str(tmp_path), titles=False, max_conversation_items=MOST))
    async with reached(state), clients_of(state, Model()) as clients:
        yield clients("sk-alice")


async def is_refused(asked: Any) -> bool:
    try:
        await asked
    except BadRequestError as error:
        assert (error.param, error.code) == ("conversation", "conversation_full")
        return True
    return False


async def test_full_conversation_takes_items_again_when_some_are_deleted(client: AsyncOpenAI) -> None:
    made = await client.conversations.create(items=[HELLO] * MOST)
    assert await is_refused(client.conversations.items.create(made.id, items=[HELLO]))
    item = (await client.conversations.items.list(made.id)).data[0]
    await client.conversations.items.delete(id_of(item), conversation_id=made.id)
    assert await is_refused(client.conversations.items.create(made.id, items=[HELLO, HELLO]))
    assert not await is_refused(client.conversations.items.create(made.id, items=[HELLO]))
    assert len(await texts(client, made.id)) == MOST
    assert await is_refused(client.conversations.create(items=[HELLO] * (MOST + 1)))


async def test_full_conversation_takes_no_turn(client: AsyncOpenAI) -> None:
    made = await client.conversations.create(items=[HELLO] * MOST)
    for asked in ("Hello", [HELLO] * 10, []):
        assert await is_refused(client.responses.create(model="m", input=asked, conversation=made.id))
    assert len(await texts(client, made.id)) == MOST


async def test_turn_that_just_fits_is_answered_in_full(client: AsyncOpenAI) -> None:
    made = await client.conversations.create(items=[HELLO] * (MOST - 1))
    turn = await client.responses.create(model="m", input="The last", conversation=made.id)
    assert await texts(client, made.id) == ["Hello"] * (MOST - 1) + ["The last", "Answer 1"]
    assert await is_refused(client.responses.create(model="m", input="One more", conversation=made.id))
    assert await is_refused(client.post(f"/responses/{turn.id}/regenerate", cast_to=object, body={}))
    assert (await texts(client, made.id))[-1] == "Answer 1"
    await client.responses.create(model="m", input="Elsewhere", previous_response_id=turn.id)

"""Conversations over HTTP, in a real PostgreSQL, with the official client in strict mode."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError
from openai.types.responses import EasyInputMessageParam, ResponseInputText

from api.state.lifecycle import ChatState
from api.wire.pages import Page
from tests.component.app_with_fakes import FakeFrontend
from tests.component.app_with_postgres import ClientOf, clients_of
from tests.component.openai_objects import content_of, first_text_of, id_of
from tests.expected import of_kind

CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
NESTED: list[Any] = []
for _ in range(400):
    NESTED = [NESTED]
HELLO: EasyInputMessageParam = {"type": "message", "role": "user", "content": "Hello"}


@pytest.fixture
async def clients(state: ChatState) -> AsyncIterator[ClientOf]:
    async with clients_of(state, FakeFrontend()) as found:
        yield found


@pytest.fixture
def client(clients: Any) -> AsyncOpenAI:
    return clients("sk-alice")


async def texts(client: AsyncOpenAI, conversation: str, **options: Any) -> list[str]:
    return [first_text_of(item) async for item in client.conversations.items.list(conversation, **options)]


def messages(*contents: str) -> list[Any]:
    return [{"role": "user", "content": content} for content in contents]


async def test_conversation_is_what_was_made(client: AsyncOpenAI) -> None:
    made = await client.conversations.create(metadata={"topic": "demo"}, items=[HELLO])
    found = await client.conversations.retrieve(made.id)
    assert found == made
    assert (found.object, found.metadata) == ("conversation", {"topic": "demo"})
    assert await texts(client, made.id) == ["Hello"]


async def test_metadata_is_replaced(client: AsyncOpenAI) -> None:
    made = await client.conversations.create(metadata={"topic": "demo", "mood": "good"})
    await client.conversations.update(made.id, metadata={"topic": "other"})
    assert (await client.conversations.retrieve(made.id)).metadata == {"topic": "other"}


async def test_deleted_conversation_is_gone_with_its_items(client: AsyncOpenAI) -> None:
    made = await client.conversations.create(items=[HELLO])
    gone = await client.conversations.delete(made.id)
    assert gone.deleted and gone.object == "conversation.deleted"
    for ask in (
        client.conversations.retrieve(made.id),
        client.conversations.delete(made.id),
        client.conversations.update(made.id, metadata={}),
        client.conversations.items.create(made.id, items=[HELLO]),
        texts(client, made.id),
    ):
        with pytest.raises(NotFoundError) as caught:
            await ask
        assert caught.value.code == "conversation_not_found"


async def test_items_are_listed_a_page_at_a_time_in_either_order(client: AsyncOpenAI) -> None:
    made = await client.conversations.create(items=messages("1", "2", "3"))
    added = await client.conversations.items.create(made.id, items=messages("4", "5"))
    assert [first_text_of(item) for item in added.data] == ["4", "5"]
    assert await texts(client, made.id, limit=2) == ["5", "4", "3", "2", "1"]
    assert await texts(client, made.id, limit=2, order="asc") == ["1", "2", "3", "4", "5"]


async def test_item_is_found_and_deleted(client: AsyncOpenAI) -> None:
    made = await client.conversations.create(items=messages("1", "2"))
    first, _ = [item async for item in client.conversations.items.list(made.id, order="asc")]
    assert await client.conversations.items.retrieve(id_of(first), conversation_id=made.id) == first
    assert (await client.conversations.items.delete(id_of(first), conversation_id=made.id)).id == made.id
    assert await texts(client, made.id) == ["2"]
    with pytest.raises(NotFoundError) as caught:
        await client.conversations.items.retrieve(id_of(first), conversation_id=made.id)
    assert caught.value.code == "item_not_found"


async def test_items_of_every_kind_come_back_in_full(client: AsyncOpenAI) -> None:
    sent: list[Any] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_image", "image_url": "data:,", "detail": "auto"}]},
        {"role": "assistant", "content": "Hi"},
        {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "nothing"},
        {"type": "reasoning", "id": "rs_1", "summary": []},
    ]
    made = await client.conversations.create(items=sent)
    found = [item async for item in client.conversations.items.list(made.id, order="asc")]
    assert [item.type for item in found] == [
        "message",
        "message",
        "message",
        "function_call",
        "function_call_output",
        "reasoning",
    ]
    assert [getattr(part, "type", None) for item in found[:3] for part in content_of(item)] == [
        "input_text",
        "input_image",
        "output_text",
    ]


async def test_conversations_are_listed_newest_first_and_selected(client: AsyncOpenAI, clients: ClientOf) -> None:
    made = [
        await client.conversations.create(metadata={"n": str(number)}, extra_body={"user": f"user{number % 2}"})
        for number in range(4)
    ]
    await client.conversations.items.create(made[0].id, items=[HELLO])  # now it is the newest
    await clients("sk-bob").conversations.create()

    async def listed(**query: Any) -> list[str]:
        answer: Any = await client.get("/conversations", cast_to=object, options={"params": query})
        return [made_["id"] for made_ in answer["data"]]

    ids = [conversation.id for conversation in made]
    assert await listed() == [ids[0], ids[3], ids[2], ids[1]]
    assert await listed(order="asc", limit=2) == [ids[1], ids[2]]
    assert await listed(after=ids[3]) == [ids[2], ids[1]]
    assert await listed(user="user1") == [ids[3], ids[1]]
    assert await listed(**{"metadata[n]": "2"}) == [ids[2]]


async def test_another_tenants_conversation_is_not_found(client: AsyncOpenAI, clients: ClientOf) -> None:
    made = await client.conversations.create(items=[HELLO])
    (item,) = [item async for item in client.conversations.items.list(made.id)]
    other = clients("sk-bob")
    theirs = await other.conversations.create()
    for ask in (
        other.conversations.retrieve(made.id),
        other.conversations.delete(made.id),
        other.conversations.items.retrieve(id_of(item), conversation_id=made.id),
        other.conversations.items.retrieve(id_of(item), conversation_id=theirs.id),
        other.conversations.items.create(made.id, items=[HELLO]),
    ):
        with pytest.raises(NotFoundError):
            await ask
    assert await texts(client, made.id) == ["Hello"]


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"items": "none"}, "items", "invalid_type"),
        ({"items": ""}, "items", "invalid_type"),
        ({"items": {}}, "items", "invalid_type"),
        ({"items": 0}, "items", "invalid_type"),
        ({"items": False}, "items", "invalid_type"),
        ({"items": [{**CALL, "more": NESTED}]}, "items[0]", "invalid_value"),
        ({"items": [HELLO] * 21}, "items", "array_above_max_length"),
        ({"items": [{"role": "user"}]}, "items[0].content", "invalid_value"),
        ({"items": [{"role": "nobody", "content": ""}]}, "items[0].role", "invalid_value"),
        ({"items": [{"type": "function_call", "name": "f"}]}, "items[0].arguments", "missing_required_parameter"),
        ({"items": [{"type": "computer_call"}]}, "items[0].type", "unsupported_value"),
        ({"metadata": {"n": 1}}, "metadata", "invalid_type"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata", "object_above_max_properties"),
        ({"metadata": {"n": "x" * 513}}, "metadata.n", "string_above_max_length"),
        ({"user": {}}, "user", "invalid_value"),
        ({"items": [{**CALL, "status": 1}]}, "items[0].status", "invalid_value"),
        ({"colour": "red"}, "colour", "unknown_parameter"),
    ],
)
async def test_bad_input_is_told_where_it_is_bad(
    client: AsyncOpenAI, body: dict[str, Any], param: str, code: str
) -> None:
    with pytest.raises(BadRequestError) as caught:
        await client.post("/conversations", cast_to=object, body=body)
    assert (caught.value.param, caught.value.code) == (param, code)


@pytest.mark.parametrize(
    "query", [{"limit": 0}, {"limit": 101}, {"limit": "1" * 5000}, {"limit": "x"}, {"order": "up"}]
)
async def test_bad_pages_are_refused(client: AsyncOpenAI, query: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError):
        await client.get("/conversations", cast_to=object, options={"params": query})


async def test_empty_after_is_none(client: AsyncOpenAI) -> None:
    made = await client.conversations.create(items=[HELLO])
    for path in ("/conversations", f"/conversations/{made.id}/items"):
        page: Any = await client.get(path, cast_to=object, options={"params": {"after": ""}})
        assert len(page["data"]) == 1


async def test_page_after_nothing_is_not_found(client: AsyncOpenAI) -> None:
    made = await client.conversations.create(items=[HELLO])
    for path in ("/conversations", f"/conversations/{made.id}/items"):
        with pytest.raises(NotFoundError):
            await client.get(path, cast_to=object, options={"params": {"after": "x"}})


async def test_fields_that_are_not_known_are_not_kept(client: AsyncOpenAI) -> None:
    parts = [{"type": "input_text", "text": "Hello", "more": [1]}]
    sent: list[Any] = [{**CALL, "more": 1}, {"role": "user", "content": parts, "more": 1}]
    made = await client.conversations.create(items=sent)
    called, said = [item async for item in client.conversations.items.list(made.id, order="asc")]
    assert not {"more"} & {
        *called.model_dump(),
        *said.model_dump(),
        *of_kind(ResponseInputText, content_of(said)[0]).model_dump(),
    }


async def test_items_of_one_conversation_can_be_given_to_another(client: AsyncOpenAI) -> None:
    call = CALL | {"id": "fc_1", "role": {}}
    first: Any = await client.post("/conversations", cast_to=object, body={"items": [call, call]})
    items: list[Any] = [item.model_dump() async for item in client.conversations.items.list(first["id"])]
    again = await client.conversations.create(items=items)
    assert len([item async for item in client.conversations.items.list(again.id)]) == 2


async def test_texts_are_encrypted_at_rest(client: AsyncOpenAI, postgres: str) -> None:
    await client.conversations.create(items=messages("a very private matter"))
    with psycopg.connect(postgres) as connection:
        connection.execute("SELECT set_config('app.tenant_id', '*', true)")
        (row,) = connection.execute("SELECT body FROM items").fetchall()
    assert b"private" not in row[0]


async def test_rows_are_seen_in_the_name_of_their_tenant_alone(client: AsyncOpenAI, postgres: str) -> None:
    await client.conversations.create(items=[HELLO])
    with psycopg.connect(postgres) as connection:
        for table in ("tenants", "tenant_keys", "conversations", "items"):
            assert connection.execute(f"SELECT * FROM {table}").fetchall() == []


async def test_as_many_items_as_a_request_may_have_are_taken_at_once_and_read_back_in_order(
    state: ChatState, postgres: str
) -> None:
    said = [{"type": "message", "role": "user", "status": "completed", "content": str(n)} for n in range(10_000)]
    store = state.stores.conversations
    await store.create("alice", {}, said[:1])
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("ANALYZE items, item_words, conversations")  # PostgreSQL knows that these tables are small
    made = await store.create("alice", {}, [])
    async with asyncio.timeout(8):
        await store.add_items("alice", made.id, said)
    kept = await store.items("alice", made.id, Page(None, len(said), False))
    assert [item["content"] for item in kept.data] == [item["content"] for item in said]

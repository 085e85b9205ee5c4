"""Search by text over HTTP and for the context, in a real PostgreSQL that holds no text."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError

from api.identity.tenants import tenant_of_key
from api.state.lifecycle import ChatState
from api.state.postgres.stores import search
from api.state.postgres.stores.items import Item
from api.state.postgres.stores.search import CAUGHT_UP_AT_ONCE
from api.state.postgres.stores.search_words import MAX_SEARCHED, text_of
from cluster.config.state import StateConfig
from tests.component.app_with_fakes import FakeFrontend
from tests.component.app_with_postgres import ClientOf, clients_of
from tests.component.openai_objects import first_text_of, id_of
from tests.component.reached import reached
from tests.expected import present


@pytest.fixture
async def clients(state: ChatState) -> AsyncIterator[ClientOf]:
    async with clients_of(state, FakeFrontend()) as found:
        yield found


@pytest.fixture
def client(clients: ClientOf) -> AsyncOpenAI:
    return clients("sk-alice")


Said = Callable[..., Awaitable[str]]


@pytest.fixture
def said(state: ChatState) -> Said:
    """Has it said in a conversation of its own, by the user and the assistant in turn, and indexed."""

    async def said_(client: AsyncOpenAI, *contents: str, **options: Any) -> str:
        roles = ("user", "assistant") * len(contents)
        items: list[Any] = [{"role": role, "content": text} for role, text in zip(roles, contents, strict=False)]
        made = await client.conversations.create(items=items, extra_body=options)
        await state.stores.search.catch_up()
        return made.id

    return said_


async def matches(client: AsyncOpenAI, query: str, **options: Any) -> list[Any]:
    answer: Any = await client.get("/conversations", cast_to=object, options={"params": {"query": query, **options}})
    return list(answer["data"])


async def found(client: AsyncOpenAI, query: str, **options: Any) -> list[str]:
    return [match["id"] for match in await matches(client, query, **options)]


def a_message(text: str, role: str = "user") -> Item:
    return {
        "type": "message",
        "role": role,
        "status": "completed",
        "content": [{"type": "input_text" if role == "user" else "output_text", "text": text}],
    }


async def test_conversations_are_found_by_what_was_said_the_best_first(said: Said, client: AsyncOpenAI) -> None:
    once = await said(client, "My canary sings, and my dog barks at everything that moves in the garden all day long")
    often = await said(client, "Canary food", "A canary eats seeds; a canary likes fruit.")
    await said(client, "Something else")
    assert await found(client, "canary") == [often, once]
    assert await found(client, "CANARY garden") == [once]
    assert await found(client, "canary or else") != [often, once]
    assert await found(client, '"dog barks"') == [once]
    assert await found(client, '"barks dog"') == []
    assert await found(client, "canary -garden") == [often]
    assert await found(client, "unheard") == []


async def test_match_shows_where_it_was(said: Said, client: AsyncOpenAI) -> None:
    long = "Before it came much else. " * 20 + "Then the canary sang.\nAnd after that " + "came more. " * 20
    await said(client, "What happened?", long)
    (match,) = await matches(client, "canary")
    item = await client.conversations.items.retrieve(match["match"]["item_id"], conversation_id=match["id"])
    assert first_text_of(item) == long
    excerpt = match["match"]["excerpt"]
    assert "Then the canary sang. And after that" in excerpt
    assert len(excerpt) <= 162 and excerpt.startswith("…") and excerpt.endswith("…")


async def test_matches_come_a_page_at_a_time(said: Said, client: AsyncOpenAI) -> None:
    ids = [await said(client, "canary " * number) for number in range(1, 6)]
    assert await found(client, "canary", limit=2) == ids[:-3:-1]
    assert await found(client, "canary", limit=2, after=ids[3]) == [ids[2], ids[1]]
    assert await found(client, "canary", after=ids[0]) == []
    with pytest.raises(NotFoundError):
        await found(client, "canary", after="x")


async def test_search_is_within_what_is_selected(said: Said, client: AsyncOpenAI) -> None:
    hers = await said(client, "canary", user="u1", metadata={"topic": "birds"})
    other = await said(client, "canary", user="u2")
    assert await found(client, "canary", user="u1") == [hers]
    assert await found(client, "canary", **{"metadata[topic]": "birds"}) == [hers]
    assert set(await found(client, "canary")) == {hers, other}


async def test_what_is_deleted_is_not_found(said: Said, client: AsyncOpenAI) -> None:
    first, second = await said(client, "canary"), await said(client, "canary")
    await client.conversations.delete(first)
    (item,) = [item async for item in client.conversations.items.list(second)]
    assert await found(client, "canary") == [second]
    await client.conversations.items.delete(id_of(item), conversation_id=second)
    assert await found(client, "canary") == []


async def test_another_tenants_words_are_not_found(said: Said, client: AsyncOpenAI, clients: ClientOf) -> None:
    await said(client, "canary")
    await said(clients("sk-bob"), "dog")
    assert await found(clients("sk-bob"), "canary") == []


async def test_only_what_people_and_the_model_say_is_found(client: AsyncOpenAI) -> None:
    items: list[Any] = [
        {"role": "developer", "content": "canary"},
        {"type": "function_call", "call_id": "c", "name": "canary", "arguments": '"canary"'},
        {"type": "function_call_output", "call_id": "c", "output": "canary"},
        {"role": "user", "content": [{"type": "input_image", "image_url": "canary", "detail": "auto"}]},
    ]
    await client.conversations.create(items=items)
    assert await found(client, "canary") == []


@pytest.mark.parametrize(
    "query", ["it's", "a\\b", "C:\\temp\\x", "'", "x & | !", "a'b:1", "naïve", "日本語", "<b>", "%s"]
)
async def test_any_text_can_be_asked_for(said: Said, client: AsyncOpenAI, query: str) -> None:
    conversation = await said(client, f"before {query} after")
    assert await found(client, query) in ([conversation], [])
    assert await found(client, "before") == [conversation]


async def test_text_that_postgres_cannot_store_does_no_harm(said: Said, client: AsyncOpenAI) -> None:
    assert await found(client, "canary") == []
    conversation = await said(client, "a canary\0 sings")
    assert await found(client, "canary sings") == [conversation]


@pytest.mark.parametrize("query", ["", "   ", "-canary", '""'])
async def test_query_without_a_word_finds_nothing(said: Said, client: AsyncOpenAI, query: str) -> None:
    await said(client, "dog")
    assert await found(client, query) == []


async def test_bad_queries_are_refused(client: AsyncOpenAI) -> None:
    for query in ({"query": "x" * 1001}, {"query": "x", "order": "asc"}, {"query": "a\0"}):
        with pytest.raises(BadRequestError):
            await client.get("/conversations", cast_to=object, options={"params": query})


async def test_no_word_is_kept_in_plain(said: Said, client: AsyncOpenAI, postgres: str) -> None:
    await said(client, "a canary sings")
    with psycopg.connect(postgres) as connection:
        connection.execute("SELECT set_config('app.tenant_id', '*', true)")
        rows = [str(row) for row in connection.execute("SELECT * FROM item_words").fetchall()]
    assert len(rows) == 1 and "canar" not in rows[0] and "sing" not in rows[0]


async def test_what_was_just_said_is_found_a_moment_later(client: AsyncOpenAI, state: ChatState) -> None:
    made = await client.conversations.create(items=[{"role": "user", "content": "canary"}])
    assert await found(client, "canary") == []
    await state.stores.search.catch_up()
    assert await found(client, "canary") == [made.id]


async def test_end_of_a_long_message_is_not_found(said: Said, client: AsyncOpenAI) -> None:
    conversation = await said(client, "canary " + "word " * MAX_SEARCHED + "dog")
    assert await found(client, "canary") == [conversation]
    assert await found(client, "dog") == []


async def test_more_than_a_batch_is_indexed(state: ChatState) -> None:
    made = await state.stores.conversations.create("alice", {}, [a_message("dog")] * (CAUGHT_UP_AT_ONCE + 1))
    await state.stores.search.catch_up()
    assert len(await relevant(state, made.id, "dog", 100)) == CAUGHT_UP_AT_ONCE + 1


async def test_what_was_said_before_is_indexed_in_the_language_that_is_wanted_now(
    said: Said, client: AsyncOpenAI, clients: ClientOf, postgres: str, tmp_path: Path
) -> None:
    conversation = await said(client, "The ships sail")
    assert (await found(client, "ship"), await found(client, "the")) == ([], [conversation])
    async with reached(
        ChatState(StateConfig(database_url=postgres, data_dir=str(tmp_path), search_language="english"))
    ) as english:
        await english.stores.search.catch_up()
        async with clients_of(english, FakeFrontend()) as english_clients:
            client = english_clients("sk-alice")
            assert (await found(client, "ship"), await found(client, "the")) == ([conversation], [])


async def test_without_search_no_words_are_kept(said: Said, client: AsyncOpenAI, postgres: str, tmp_path: Path) -> None:
    conversation = await said(client, "canary")
    async with reached(ChatState(StateConfig(database_url=postgres, data_dir=str(tmp_path), search=False))) as off:
        async with clients_of(off, FakeFrontend()) as off_clients:
            with pytest.raises(BadRequestError):
                await found(off_clients("sk-alice"), "canary")
            later = await said(off_clients("sk-alice"), "canary")
        await off.stores.search.catch_up()
        assert await off.stores.search.relevant("alice", conversation, "canary", 1) == []
        with psycopg.connect(postgres) as connection:
            connection.execute("SELECT set_config('app.tenant_id', '*', true)")
            assert connection.execute("SELECT count(words) FROM item_words").fetchone() == (0,)
    async with reached(ChatState(StateConfig(database_url=postgres, data_dir=str(tmp_path)))) as again:
        await again.stores.search.catch_up()
        assert set(await found(client, "canary")) == {conversation, later}


async def test_words_go_with_their_item(said: Said, client: AsyncOpenAI, state: ChatState, postgres: str) -> None:
    conversation = await said(client, "canary")
    await state.stores.search.catch_up()
    for item in (await client.conversations.items.list(conversation)).data:
        await client.conversations.items.delete(present(item.id), conversation_id=conversation)
    with psycopg.connect(postgres) as connection:
        connection.execute("SELECT set_config('app.tenant_id', '*', true)")
        assert connection.execute("SELECT count(*) FROM item_words").fetchone() == (0,)


async def relevant(state: ChatState, conversation: str, text: str, limit: int = 10, **options: Any) -> list[str]:
    await state.stores.search.catch_up()
    items = await state.stores.search.relevant("alice", conversation, text, limit, **options)
    found = [await state.stores.conversations.item("alice", conversation, item) for item in items]
    return [item["content"][0]["text"] for item in found]


async def test_relevant_messages_share_the_words_that_few_others_have(state: ChatState) -> None:
    texts = ["the cat is the boss of the house", "the dog is named Rex", "the weather is what it is", "thanks"]
    made = await state.stores.conversations.create("alice", {}, [a_message(text) for text in texts])
    await state.stores.conversations.create("alice", {}, [a_message("the dog of another conversation")])
    assert await relevant(state, made.id, "what is the name of the dog?", 1) == [texts[1]]
    assert (await relevant(state, made.id, "Is Rex the dog?"))[0] == texts[1]
    assert await relevant(state, made.id, "unheard") == []
    assert await relevant(state, made.id, "\0 ?!") == []
    assert await relevant(state, "conv_1", "dog") == []
    assert await state.stores.search.relevant("bob", made.id, "dog", 1) == []


async def test_relevant_messages_can_be_those_before_another(state: ChatState) -> None:
    made = await state.stores.conversations.create("alice", {}, [])
    first, _, third = await state.stores.conversations.add_items(
        "alice", made.id, [a_message(f"dog {n}") for n in "123"]
    )
    assert await relevant(state, made.id, "dog", before_item=third["id"]) == ["dog 2", "dog 1"]
    assert await relevant(state, made.id, "dog", before_item=first["id"]) == []


async def test_index_is_used_though_rows_belong_to_tenants(said: Said, client: AsyncOpenAI, postgres: str) -> None:
    await said(client, "canary")
    with psycopg.connect(postgres) as connection:
        connection.execute("SET LOCAL enable_seqscan = off")
        plan = connection.execute("EXPLAIN SELECT FROM item_words WHERE words @@ 'canary'").fetchall()
    assert "item_words_words" in str(plan)


async def test_messages_whose_key_is_destroyed_are_passed_over(said: Said, client: AsyncOpenAI, postgres: str) -> None:
    await client.conversations.create(items=[{"role": "user", "content": "canary"}])
    with psycopg.connect(postgres) as connection:
        connection.execute("SELECT set_config('app.tenant_id', %s, true)", [tenant_of_key("sk-alice")])
        connection.execute("UPDATE tenant_keys SET wrapped_key = NULL, destroyed_at = now()")
    conversation = await said(client, "dog")
    assert await found(client, "canary") == []
    assert await found(client, "dog") == [conversation]


async def test_only_the_newest_messages_are_compared(state: ChatState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "COMPARED", 2)
    made = await state.stores.conversations.create("alice", {}, [a_message(f"dog {n}") for n in "123"])
    assert await relevant(state, made.id, "dog") == ["dog 3", "dog 2"]


async def test_message_that_cannot_be_indexed_is_passed_over(
    state: ChatState, client: AsyncOpenAI, said: Said, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def odd(item: Item) -> str:
        if text_of(item) == "odd":
            raise TypeError("no text")
        return text_of(item)

    monkeypatch.setattr(search, "text_of", odd)
    conversation = await said(client, "canary", "odd", "dog")
    assert await found(client, "canary") == await found(client, "dog") == [conversation]
    await state.stores.search.catch_up()
    assert caplog.text.count("cannot be searched: no text") == 1

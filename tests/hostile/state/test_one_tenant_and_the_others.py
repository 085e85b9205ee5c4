"""One tenant cannot take from the others what all of them need."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import psycopg
import pytest

from api.identity.tenants import tenant_of_key
from api.state.lifecycle import ChatState
from api.state.postgres.stores import search
from api.state.postgres.stores.search import Search
from api.wire.pages import Page
from cluster.errors import StateUnavailable, TooManyRequests
from tests.hostile.state.stored import database_of

ALICE = tenant_of_key("sk-alice")


async def test_tenant_whose_statements_are_slow_leaves_connections_to_the_others(
    state: ChatState, state_with: Callable[..., Awaitable[ChatState]]
) -> None:
    state = await state_with(max_connections=4)
    begun, may_end = asyncio.Semaphore(0), asyncio.Event()

    async def slow() -> None:
        async with database_of(state).transaction("greedy"):
            begun.release()
            await may_end.wait()

    busy = [asyncio.create_task(slow()) for _ in range(12)]
    for _ in range(2):
        await begun.acquire()
    async with asyncio.timeout(1):
        conversation = await state.stores.conversations.create("modest", {}, [])
        assert await state.stores.conversations.get("modest", conversation.id)
    for task in busy:
        task.cancel()
    await asyncio.gather(*busy, return_exceptions=True)


async def test_tenant_that_waits_for_itself_too_long_is_told_so(
    state: ChatState, state_with: Callable[..., Awaitable[ChatState]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.state.postgres.database.CONNECTION_TIMEOUT_S", 0.05)
    state = await state_with(max_connections=2)
    async with database_of(state).transaction("greedy"):
        with pytest.raises(StateUnavailable):
            async with database_of(state).transaction("greedy"):
                pass
        async with database_of(state).transaction("modest"):
            pass


async def test_searches_of_one_tenant_take_turns(state: ChatState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "CONNECTION_TIMEOUT_S", 0.05)
    searches = state.stores.search
    async with searches._shares.one("greedy"):
        with pytest.raises(TooManyRequests):
            await find(searches, "greedy")
        assert (await find(searches, "modest")).part.data == []


async def test_search_that_takes_long_is_ended_and_told_why(
    http: httpx.AsyncClient, state: ChatState, postgres: str
) -> None:
    """It waits for a table that somebody has locked, which PostgreSQL itself ends half a second later."""
    await http.post("/v1/conversations", json={"items": [{"role": "user", "content": "dog"}]})
    await state.stores.search.catch_up()
    with psycopg.connect(postgres) as locking:
        locking.execute("LOCK TABLE item_words")
        refused = await http.get("/v1/conversations?query=dog")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "query_too_broad")
    assert len((await http.get("/v1/conversations?query=dog")).json()["data"]) == 1


async def test_only_the_newest_thousand_messages_that_match_are_ranked(
    http: httpx.AsyncClient, state: ChatState, postgres: str
) -> None:
    """What a common word costs is bounded."""
    said = {"items": [{"role": "user", "content": "dog"}]}
    oldest, newest = [(await http.post("/v1/conversations", json=said)).json()["id"] for _ in range(2)]
    await state.stores.search.catch_up()

    async def found() -> set[str]:
        return {entry["id"] for entry in (await http.get("/v1/conversations?query=dog")).json()["data"]}

    assert await found() == {oldest, newest}
    repeat(postgres, newest, 998)
    assert await found() == {oldest, newest}
    repeat(postgres, newest, 1)
    assert await found() == {newest}


def repeat(url: str, conversation: str, times: int) -> None:
    """The message of this conversation, as if it had been said and indexed so many times more."""
    with psycopg.connect(url) as connection:
        connection.execute("SELECT set_config('app.tenant_id', %s, true)", [ALICE])
        connection.execute(
            "WITH said AS (SELECT * FROM items WHERE conversation_id = %s ORDER BY seq LIMIT 1), copies AS ("
            "INSERT INTO items (tenant_id, id, conversation_id, seq, type, role, body, key_version) "
            "SELECT tenant_id, gen_random_uuid()::text, conversation_id, "
            "n + (SELECT max(seq) FROM items), type, role, body, key_version "
            "FROM said CROSS JOIN generate_series(1, %s) n RETURNING tenant_id, id) "
            "INSERT INTO item_words SELECT c.tenant_id, c.id, w.language, w.words "
            "FROM copies c, item_words w JOIN said s ON s.id = w.item_id",
            [conversation, times],
        )


async def find(searches: Search, tenant: str) -> Any:
    return await searches.find(tenant, "dog", Page(None, 10, True), None, {})

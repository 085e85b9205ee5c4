"""What one tenant stores is bounded: of an item, of a conversation, and in all."""

import asyncio
from collections.abc import Awaitable, Callable

import httpx
import pytest

from api.identity.tenants import tenant_of_key
from api.state.lifecycle import ChatState
from tests.hostile.state.blocking import longest_block
from tests.hostile.state.conftest import HttpOf
from tests.hostile.state.stored import rows

KILO, MEGA = 1 << 10, 1 << 20


def said(text: str) -> dict[str, str]:
    return {"type": "message", "role": "user", "content": text}


def counted(url: str) -> int:
    """As the database has added it up, for all tenants."""
    return int(rows(url, "SELECT coalesce(sum(bytes), 0)::bigint FROM tenant_bytes")[0][0])


def code_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


async def test_item_that_is_too_large_is_refused_wherever_it_comes(
    state: ChatState, state_with: Callable[..., Awaitable[ChatState]], http_of: HttpOf
) -> None:
    http = http_of(await state_with(max_item_bytes=10 * KILO))
    long, conversation = "x" * 20 * KILO, (await http.post("/v1/conversations", json={})).json()["id"]
    for path, body in (
        ("/v1/conversations", {"items": [said("Hello"), said(long)]}),
        (f"/v1/conversations/{conversation}/items", {"items": [said(long)]}),
        ("/v1/responses", {"model": "m", "input": long}),
        ("/v1/responses", {"model": "m", "input": "Hello", "instructions": long}),
    ):
        refused = await http.post(path, json=body)
        assert code_of(refused) == (400, "string_above_max_length"), path
    assert (await http.get(f"/v1/conversations/{conversation}/items")).json()["data"] == []


async def test_conversation_is_full_by_bytes_and_has_room_again_when_items_are_deleted(
    state: ChatState, state_with: Callable[..., Awaitable[ChatState]], http_of: HttpOf
) -> None:
    http = http_of(await state_with(max_conversation_bytes=25 * KILO))
    conversation = (await http.post("/v1/conversations", json={})).json()["id"]
    items = f"/v1/conversations/{conversation}/items"
    first = (await http.post(items, json={"items": [said("x" * 10 * KILO)]})).json()["data"][0]["id"]
    assert (await http.post(items, json={"items": [said("x" * 10 * KILO)]})).status_code == 200
    assert code_of(await http.post(items, json={"items": [said("x" * 10 * KILO)]})) == (400, "conversation_full")
    turn = {"model": "m", "input": "x" * 10 * KILO, "conversation": conversation}
    assert code_of(await http.post("/v1/responses", json=turn)) == (400, "conversation_full")
    await http.delete(f"{items}/{first}")
    assert (await http.post(items, json={"items": [said("x" * 10 * KILO)]})).status_code == 200


async def test_quota_is_exact_under_concurrency_and_given_back_by_deletions(
    state: ChatState, postgres: str, state_with: Callable[..., Awaitable[ChatState]], http_of: HttpOf
) -> None:
    limited = await state_with(max_tenant_bytes=100 * KILO)
    http, bob = http_of(limited), http_of(limited, "sk-bob")
    body = {"items": [said("x" * 9 * KILO)]}
    answers = await asyncio.gather(*(http.post("/v1/conversations", json=body) for _ in range(20)))
    made = [answer.json()["id"] for answer in answers if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code != 200]
    assert 8 <= len(made) <= 10 and counted(postgres) <= 100 * KILO
    assert {code_of(answer) for answer in refused} == {(400, "storage_quota_exceeded")}
    assert (await bob.post("/v1/conversations", json=body)).status_code == 200
    for conversation in made:
        (item,) = (await http.get(f"/v1/conversations/{conversation}/items")).json()["data"]
        assert (await http.delete(f"/v1/conversations/{conversation}/items/{item['id']}")).status_code == 200
    assert (await http.post("/v1/conversations", json=body)).status_code == 200


async def test_what_is_counted_is_what_is_there(http: httpx.AsyncClient, state: ChatState, postgres: str) -> None:
    conversation = (await http.post("/v1/conversations", json={"items": [said("Hello")], "title": "t"})).json()["id"]
    await http.post(f"/v1/conversations/{conversation}", json={"metadata": {"a": "b" * 100}, "title": "longer"})
    turn = {"model": "m", "input": "x" * KILO, "conversation": conversation, "instructions": "Be kind."}
    response = (await http.post("/v1/responses", json=turn)).json()["id"]
    chat = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "store": True}
    await http.post("/v1/chat/completions", json=chat)
    await http.post("/v1/feedback", json={"response_id": response, "rating": 1, "comment": "good"})
    there = rows(postgres, "SELECT sum(octet_length(body) + baton_row_bytes())::bigint FROM items")[0][0]
    for table in ("responses", "chat_completions", "conversations", "feedback"):
        there += rows(postgres, f"SELECT sum(baton_bytes({table}))::bigint FROM {table}")[0][0]
    assert counted(postgres) == there > 3 * KILO
    for table in ("feedback", "chat_completions", "items", "responses", "conversations"):
        rows(postgres, f"DELETE FROM {table}", tenant=tenant_of_key("sk-alice"))
    assert counted(postgres) == 0


async def test_list_of_large_items_is_read_by_size_and_none_is_left_out(
    http: httpx.AsyncClient, state: ChatState
) -> None:
    conversation = (await http.post("/v1/conversations", json={})).json()["id"]
    items = f"/v1/conversations/{conversation}/items"
    made = []
    for number in range(6):
        added = await http.post(items, json={"items": [said(str(number) + "x" * 3 * MEGA)]})
        made += [item["id"] for item in added.json()["data"]]
    found, after, pages = [], "", 0
    async with longest_block() as longest:
        while True:
            page = (await http.get(f"{items}?order=asc&limit=100{after}")).json()
            found += [item["id"] for item in page["data"]]
            pages += 1
            assert sum(len(item["content"][0]["text"]) for item in page["data"]) <= 12 * MEGA
            if not page["has_more"]:
                break
            after = f"&after={page['last_id']}"
    assert found == made and pages == 2
    assert longest.blocked_s < 0.25


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_pages_of_few_small_items_are_as_ever(http: httpx.AsyncClient, state: ChatState, limit: int) -> None:
    body = {"items": [said(str(number)) for number in range(3)]}
    conversation = (await http.post("/v1/conversations", json=body)).json()["id"]
    page = (await http.get(f"/v1/conversations/{conversation}/items?order=asc&limit={limit}")).json()
    assert len(page["data"]) == limit and page["has_more"] == (limit < 3)

"""Each text is stored once, and clients see the bytes that they always saw."""

import asyncio
from typing import Any

import httpx
import msgspec
import openai
import psycopg
import pytest
from openai.types.responses import Response

from api.identity.tenants import tenant_of_key
from api.state.event_streams.response_events import StoredEvents, events_of
from api.state.lifecycle import ChatState
from api.state.postgres.stores.responses import RUNNING
from api.state.postgres.tenant_transaction import TenantDatabase
from api.wire.responses.short_events import whole
from tests.component.api.responses.streams import resumed
from tests.component.openai_objects import response_of
from tests.expected import present
from tests.hostile.state.blocking import longest_block
from tests.hostile.state.conftest import TalkativeModel
from tests.hostile.state.stored import num_bytes, rows

MEBIBYTE = 1 << 20
ALICE = tenant_of_key("sk-alice")


async def over(state: ChatState, response: str) -> None:
    for _ in range(1000):
        if present(await state.stores.response_events.standing(ALICE, response)).status not in RUNNING:
            return
        await asyncio.sleep(0.01)
    raise TimeoutError


async def test_long_instructions_are_stored_once_and_hold_nobody_up(
    http: httpx.AsyncClient, state: ChatState, postgres: str
) -> None:
    instructions, description = "x" * (8 * MEBIBYTE), "y" * MEBIBYTE
    tool = {"type": "function", "name": "f", "description": description, "parameters": {"type": "object"}}
    asked = {"model": "m", "input": "Hello", "instructions": instructions, "tools": [tool], "background": True}
    body = msgspec.json.encode(asked)
    async with longest_block() as longest:
        made = (await http.post("/v1/responses", content=body, headers={"content-type": "application/json"})).content
        response = made[made.index(b"resp_") :][:37].decode()
        await over(state, response)
        shown = (await http.get(f"/v1/responses/{response}")).content
        events = (await http.get(f"/v1/responses/{response}?stream=true")).content
    assert longest.blocked_s < 0.25
    assert num_bytes(postgres) < 9.2 * MEBIBYTE
    for text in (instructions.encode(), description.encode()):
        assert (made.count(text), shown.count(text), events.count(text)) == (1, 1, 4)


async def test_answer_is_stored_as_it_was_told_and_as_an_item(
    client: openai.AsyncOpenAI, model: TalkativeModel, postgres: str
) -> None:
    made = await client.responses.create(model="m", input="Hello", stream=True)
    told = [event async for event in made]
    (kept,) = rows(postgres, "SELECT sum(octet_length(events))::int FROM response_events")
    assert kept[0] < 1600 < len(b"".join(event.model_dump_json().encode() for event in told))
    assert await resumed(client, response_of(told[0]).id) == told


async def test_response_is_made_anew_from_what_is_stored_once(
    client: openai.AsyncOpenAI, model: TalkativeModel
) -> None:
    tool: Any = {"type": "function", "name": "f", "description": "Does it."}
    asked: dict[str, Any] = {
        "instructions": "Be kind.",
        "tools": [tool],
        "temperature": 0.5,
        "metadata": {"a": "b"},
        "user": "u",
    }
    made = await client.responses.create(model="m", input="Hello", **asked)
    again = await client.post(f"/responses/{made.id}/regenerate", cast_to=httpx.Response, body={"temperature": 1})
    first, second = (body for _, body in model.bodies)
    assert second == first | {"temperature": 1}
    shown = again.json()
    assert shown["metadata"] == {"a": "b", "regenerated_from": made.id}
    assert (shown["instructions"], shown["tools"], shown["user"]) == ("Be kind.", made.to_dict()["tools"], "u")


async def test_what_an_older_version_has_stored_is_shown_as_ever(
    client: openai.AsyncOpenAI, model: TalkativeModel, state: ChatState, postgres: str
) -> None:
    """It stored the response as it ended, the request, and each event in full."""
    made = await client.responses.create(model="m", input="Hello", instructions="Be kind.", metadata={"a": "b"})
    told = await resumed(client, made.id)
    await as_of_an_older_version(state, postgres, made.id)
    assert await client.responses.retrieve(made.id) == made
    assert await resumed(client, made.id) == told
    again = await client.post(f"/responses/{made.id}/regenerate", cast_to=httpx.Response, body={})
    assert again.json()["instructions"] == "Be kind."
    assert model.chats[0] == model.chats[1]


async def as_of_an_older_version(state: Any, url: str, response: str) -> None:
    ((tenant,),) = rows(url, "SELECT tenant_id FROM responses WHERE id = %s", [response])
    store = state.stores
    async with TenantDatabase(state._database, state._keys).transaction(tenant) as transaction:
        key = await transaction.sealing_key()
        lines = await events_of(transaction, response)
    ended, asked = await store.responses.get(tenant, response), await store.responses.asked(tenant, response)
    created = await store.response_events.created(tenant, response)
    batch = StoredEvents.of(key, response, "", 0, whole(lines, created))
    body = key.seal(msgspec.json.encode({**ended, "output": []}), f"responses/{response}/body")
    request = key.seal(msgspec.json.encode(asked.body), f"responses/{response}/asked")
    with psycopg.connect(url) as connection:
        connection.execute("SELECT set_config('app.tenant_id', '*', true)")
        connection.execute("UPDATE responses SET body = %s, asked = %s, outcome = NULL", [body, request])
        connection.execute("DELETE FROM response_events")
        connection.execute(
            "INSERT INTO response_events VALUES (%s, %s, 0, %s, %s, %s)",
            [tenant, response, len(lines) - 1, batch.sealed, key.version],
        )


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_answer_ends_where_it_has_said_as_much_as_it_may(
    client: openai.AsyncOpenAI, model: TalkativeModel, state: ChatState, is_streamed: bool
) -> None:
    model.pieces = ("x" * 10_000,) * 1000
    state.log_space._most_of_one = 100_000
    answer = await client.responses.create(model="m", input="Hello", stream=is_streamed)
    found = answer if isinstance(answer, Response) else response_of([event async for event in answer][-1])
    assert (found.status, present(found.incomplete_details).reason) == ("incomplete", "max_output_tokens")
    assert 100_000 <= len(found.output_text) < 120_000
    assert await client.responses.retrieve(found.id) == found
    assert state.log_space.used == 0

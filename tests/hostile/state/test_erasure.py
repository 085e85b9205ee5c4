"""A tenant that is erased is gone: from PostgreSQL, from Redis, and from the memory of every replica."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from redis import Redis

from api.identity.tenants import tenant_of_key
from api.state import administration as module
from api.state.administration import Administration
from api.state.encryption.tenant_keys import LocalMasterKey
from api.state.lifecycle import ChatState
from cluster.errors import NotFound
from tests.expected import of_kind, present
from tests.hostile.state.conftest import HttpOf, TalkativeModel
from tests.hostile.state.stored import rows, services_of
from tests.unit.safety_events import a_safety_event

ALICE, BOB = tenant_of_key("sk-alice"), tenant_of_key("sk-bob")
TABLES = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' AND table_type = 'BASE TABLE'"
SAID = [{"type": "message", "role": "user", "content": "canary"}]


@pytest.fixture(autouse=True)
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REPLICAS_LOOK_S", 0.0)


def administration(state: ChatState) -> Administration:
    return state.administration(lambda _: None)


async def with_everything(http: httpx.AsyncClient) -> str:
    """A tenant of whom there is something in every table. Returns a conversation."""
    made = {"items": SAID, "title": "canary", "metadata": {"canary": "canary"}, "user": "canary"}
    conversation = (await http.post("/v1/conversations", json=made)).json()["id"]
    turn = {"model": "m", "input": "canary", "conversation": conversation}
    response = (await http.post("/v1/responses", json=turn, headers={"idempotency-key": "canary"})).json()["id"]
    await http.post("/v1/feedback", json={"response_id": response, "rating": 1, "comment": "canary"})
    await http.get(f"/v1/conversations/{conversation}")  # of which a copy is kept
    await http.get(f"/v1/conversations/{conversation}/items")
    await http.post("/v1/chat/completions", json={"model": "m", "messages": SAID, "store": True})
    services = services_of(http)
    await services.completion_writer.drained()
    tenant = tenant_of_key(http.headers["authorization"].removeprefix("Bearer "))
    event = a_safety_event(tenant=tenant, evidence=b"canary")
    await services.chat_state.stores.audit.append([event])
    await services.chat_state.stores.appeals.open(tenant, event.id, "canary")
    return conversation


def tables_of_tenants(url: str) -> set[str]:
    return {name for (name,) in rows(url, TABLES) if name != "schema_migrations"}


def rows_of(url: str, tenant: str) -> dict[str, int]:
    """Of each table that has some."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT set_config('app.tenant_id', '*', false)")
        found = {}
        for table in tables_of_tenants(url):
            column = "id" if table == "tenants" else "tenant_id"
            query = f"SELECT count(*) FROM {table} WHERE {column} = %s"
            (found[table],) = present(connection.execute(query, [tenant]).fetchone())
    return {table: number for table, number in found.items() if number}


async def test_nothing_readable_is_left_and_others_have_all_that_they_had(
    http_of: HttpOf, state: ChatState, state_with: Callable[..., Awaitable[ChatState]], postgres: str, redis: str
) -> None:
    elsewhere = await state_with()
    http, bob = http_of(state), http_of(state, "sk-bob")
    conversation, of_bob = await with_everything(http), await with_everything(bob)
    await state.stores.search.catch_up()
    await elsewhere.stores.conversations.get(ALICE, conversation)
    before = rows_of(postgres, BOB)
    assert before.keys() == tables_of_tenants(postgres)
    erased = await administration(elsewhere).erase(ALICE)
    assert erased["items"] == 3 and erased["Redis"] > 0
    assert rows_of(postgres, ALICE).keys() == {"tenants", "tenant_keys"}
    assert rows(postgres, "SELECT wrapped_key FROM tenant_keys WHERE tenant_id = %s", [ALICE]) == [(None,)]
    with Redis.from_url(redis) as client:
        assert list(client.scan_iter(f"baton:*:{ALICE}:*")) == []
    for replica in (state, elsewhere):
        await replica.look()
        assert replica._keys.remembered(ALICE) is None
        assert not [kept for kept in replica._keys._kept if kept[0] == ALICE]
    assert rows_of(postgres, BOB) == before
    assert (await bob.get(f"/v1/conversations/{of_bob}")).json()["title"] == "canary"


async def test_response_that_runs_meanwhile_writes_nothing_afterwards(
    http_of: HttpOf, state: ChatState, postgres: str, model: TalkativeModel
) -> None:
    http = http_of(state)
    conversation = await with_everything(http)
    model.may_go_on.clear()
    number = len(model.bodies) + 1
    model.waiting = {number}
    turn = {"model": "m", "input": "canary", "conversation": conversation}
    running = asyncio.create_task(http.post("/v1/responses", json=turn))
    await model.asked(number)
    await administration(state).erase(ALICE)
    model.may_go_on.set()
    await running
    await services_of(http).turns.drained(60)
    assert rows_of(postgres, ALICE).keys() == {"tenants", "tenant_keys"}


async def test_nothing_is_stored_for_a_while_and_then_as_for_a_new_tenant(
    http_of: HttpOf, state: ChatState, postgres: str
) -> None:
    http = http_of(state)
    conversation = await with_everything(http)
    await administration(state).erase(ALICE)
    for method, path in (("GET", f"/v1/conversations/{conversation}"), ("POST", "/v1/conversations")):
        refused = await http.request(method, path, json=None if method == "GET" else {"items": SAID})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "tenant_erased")
    rows(postgres, "UPDATE tenants SET erased_at = now() - interval '1 day' WHERE erased_at IS NOT NULL")
    await state.stores.retention.run()
    assert (await http.get(f"/v1/conversations/{conversation}")).status_code == 404
    made = (await http.post("/v1/conversations", json={"items": SAID})).json()
    assert (await http.get(f"/v1/conversations/{made['id']}/items")).json()["data"][0]["content"][0]["text"] == "canary"


async def test_tenant_of_whom_nothing_is_stored_cannot_be_erased(state: ChatState) -> None:
    with pytest.raises(NotFound):
        await administration(state).erase("0" * 16)


async def test_texts_are_sealed_anew_and_the_key_before_is_destroyed(
    http_of: HttpOf, state: ChatState, state_with: Callable[..., Awaitable[ChatState]], postgres: str
) -> None:
    http, elsewhere = http_of(state), await state_with()
    conversation = await with_everything(http)
    shown = [(await http.get(f"/v1/conversations/{conversation}{path}")).json() for path in ("", "/items")]
    before = rows(postgres, "SELECT sum(bytes)::bigint FROM tenant_bytes WHERE tenant_id = %s", [ALICE])
    await state.stores.search.catch_up()
    words = "SELECT count(words) FROM item_words WHERE tenant_id = %s"
    assert rows(postgres, words, [ALICE]) == [(3,)]
    assert await administration(elsewhere).rotate(ALICE) == [1]
    for replica in (state, elsewhere):
        await replica.look()
        client = http_of(replica)
        assert [
            (await client.get(f"/v1/conversations/{conversation}{path}")).json() for path in ("", "/items")
        ] == shown
    keys = rows(postgres, "SELECT version, wrapped_key IS NULL FROM tenant_keys WHERE tenant_id = %s", [ALICE])
    assert sorted(keys) == [(1, True), (2, False)]
    assert rows(postgres, words, [ALICE]) == [(0,)]  # their hashes were made with the key that is gone
    assert rows(postgres, "SELECT sum(bytes)::bigint FROM tenant_bytes WHERE tenant_id = %s", [ALICE]) == before
    await state.stores.search.catch_up()
    found = await http.get("/v1/conversations?query=canary")
    assert [entry["id"] for entry in found.json()["data"]] == [conversation]


async def test_key_of_a_response_that_runs_is_destroyed_by_the_next_rotation(
    http_of: HttpOf, state: ChatState, model: TalkativeModel
) -> None:
    http = http_of(state)
    conversation = await with_everything(http)
    model.may_go_on.clear()
    number = len(model.bodies) + 1
    model.waiting = {number}
    turn = {"model": "m", "input": "canary", "conversation": conversation}
    running = asyncio.create_task(http.post("/v1/responses", json=turn))
    await model.asked(number)
    assert await administration(state).rotate(ALICE) == []
    model.may_go_on.set()
    answer: Any = (await running).json()
    assert answer["status"] == "completed"
    assert await administration(state).rotate(ALICE) == [1, 2]
    assert (await http.get(f"/v1/responses/{answer['id']}")).json() == answer


async def test_master_key_is_rotated_beside_running_replicas(
    http_of: HttpOf, state: ChatState, state_with: Callable[..., Awaitable[ChatState]], tmp_path: Path
) -> None:
    http, elsewhere = http_of(state), await state_with()
    conversation = await with_everything(http)
    of_kind(LocalMasterKey, elsewhere._keys._master).rotate()
    number = await administration(elsewhere).rewrap()
    assert number == 2  # hers, and the one for names
    assert (await http.get(f"/v1/conversations/{conversation}")).json()["title"] == "canary"
    await with_everything(http_of(state, "sk-bob"))
    key = (tmp_path / "master.key").read_bytes()
    (tmp_path / "master.key").write_bytes(key[:32])
    assert await administration(elsewhere).rewrap() == 0
    later = await state_with()
    assert (await http_of(later).get(f"/v1/conversations/{conversation}")).json()["title"] == "canary"

"""A tenant that is erased is gone: from PostgreSQL, from Redis, and from the memory of every replica."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from redis import Redis

from api.identity.tenants import tenant_of_key
from api.state import administration as module
from api.state.administration import Administration
from api.state.encryption.tenant_keys import LocalMasterKey
from api.state.lifecycle import ChatState
from api.state.postgres.ledger.ledger_jobs import LedgerJobs
from api.state.postgres.ledger.ledger_store import LedgerStore
from api.state.redis import usage_stream
from api.state.redis.usage_stream import STREAM
from cluster.errors import NotFound
from tests.expected import of_kind, present
from tests.hostile.state.conftest import HttpOf, TalkativeModel
from tests.hostile.state.stored import SAID, database_of, rows, services_of, with_everything
from tests.unit.usage_rows import a_row, an_opening

ALICE, BOB = tenant_of_key("sk-alice"), tenant_of_key("sk-bob")
TABLES = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' AND table_type = 'BASE TABLE'"
NOT_ERASED = frozenset({"schema_migrations", "accounts", "accounts_version", "projects", "api_keys", "account_changes"})
"""What an operator keeps of accounts stays: they have no text of a client."""


@pytest.fixture(autouse=True)
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REPLICAS_LOOK_S", 0.0)


def administration(state: ChatState) -> Administration:
    return state.administration(lambda _: None)


def tables_of_tenants(url: str) -> set[str]:
    """Without the ledger of usage, whose rows outlive their tenant without a name of an end user."""
    names = {name for (name,) in rows(url, TABLES) if name not in NOT_ERASED}
    return {name for name in names if not name.startswith("usage_")}


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
    with Redis.from_url(redis) as client:
        for tenant in (ALICE, BOB):
            client.set(f"baton:limits:{{{tenant}}}:open", 1)
    erased = await administration(elsewhere).erase(ALICE)
    assert erased["items"] == 3 and erased["Redis"] > 0
    assert rows_of(postgres, ALICE).keys() == {"tenants", "tenant_keys"}
    assert rows(postgres, "SELECT wrapped_key FROM tenant_keys WHERE tenant_id = %s", [ALICE]) == [(None,)]
    with Redis.from_url(redis) as client:
        assert list(client.scan_iter(f"*{ALICE}*")) == []
        assert client.delete(f"baton:limits:{{{BOB}}}:open") == 1
    for replica in (state, elsewhere):
        await replica.look()
        assert replica._keys.remembered(ALICE) is None
        assert not [kept for kept in replica._keys._kept if kept[0] == ALICE]
    assert rows_of(postgres, BOB) == before
    assert (await bob.get(f"/v1/conversations/{of_bob}")).json()["title"] == "canary"


async def test_usage_stays_without_the_names_of_end_users(
    state: ChatState, http_of: HttpOf, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ERASED_AT_ONCE", 2)
    await with_everything(http_of(state))
    usage = [a_row(tenant_id=ALICE, end_user="canary") for _ in range(5)] + [a_row(tenant_id=BOB, end_user="canary")]
    await LedgerStore(database_of(state)).write([], [], usage)
    erased = await administration(state).erase(ALICE)
    assert erased["usage_ledger (names of end users)"] == 5
    found = rows(postgres, "SELECT tenant_id, end_user, count(*) FROM usage_ledger GROUP BY 1, 2 ORDER BY 1")
    assert found == sorted([(ALICE, "", 5), (BOB, "canary", 1)])
    named = rows(postgres, "SELECT tenant_id, scope_id FROM usage_day_sums WHERE kind = 'end_user'")
    assert named == [(BOB, "canary")]


async def test_records_that_come_after_an_erasure_have_no_names_of_end_users(
    http_of: HttpOf, state: ChatState, postgres: str
) -> None:
    """Of requests that ran meanwhile, and from the disk of an ingress that was away for long."""
    await with_everything(http_of(state))
    ledger, jobs = LedgerStore(database_of(state)), LedgerJobs(database_of(state))
    now_ms = int(time.time() * 1000)
    names: dict[str, Any] = {"tenant_id": ALICE, "end_user": "canary"}
    running, lost = an_opening(now_ms, **names), an_opening(now_ms, ingress="gone", **names)
    await ledger.write([running, lost], [], [])
    assert (await administration(state).erase(ALICE))["usage_openings (names of end users)"] == 2
    await ledger.write([], [running.id], [a_row(id=running.id, **names)])
    rows(postgres, "UPDATE tenants SET erased_at = now() - interval '1 h', erasing_since = now() - interval '2 h'")
    rows(postgres, "UPDATE usage_openings SET opened_at = now() - interval '1 h'")
    assert (await jobs.reap(90.0)).lost == 1
    await state.stores.retention.run()  # the tenant may store again
    late = now_ms - 3_600_000 - 5000
    await ledger.write([an_opening(late, ingress="late", **names)], [], [a_row(late, **names)])
    assert rows(postgres, "SELECT DISTINCT end_user FROM usage_ledger UNION SELECT end_user FROM usage_openings") == [
        ("",)
    ]
    await ledger.write([an_opening(now_ms, **names)], [], [a_row(now_ms, **names)])
    for table in ("usage_ledger", "usage_openings"):  # of the same tenant, which goes on
        assert rows(postgres, f"SELECT count(*) FROM {table} WHERE end_user = 'canary'") == [(1,)]


async def test_rows_in_the_stream_lose_the_names_of_end_users(
    http_of: HttpOf, state: ChatState, redis: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_stream, "READ_AT_ONCE", 2)
    await with_everything(http_of(state))
    usage = [
        {"id": number, "tenant_id": tenant, "end_user": name}
        for number, (tenant, name) in enumerate([(ALICE, "canary"), (BOB, "canary"), (ALICE, ""), (ALICE, "canary")])
    ]
    with Redis.from_url(redis) as client:
        for row in usage:
            client.xadd(STREAM, {"row": msgspec.json.encode(row)})
        erased = await administration(state).erase(ALICE)
        assert erased["baton:usage (names of end users)"] == 2
        entries: Any = client.xrange(STREAM)
        client.delete(STREAM)
    left = [msgspec.json.decode(fields[b"row"]) for _, fields in entries]
    assert sorted((row["id"], row["tenant_id"], row["end_user"]) for row in left) == [
        (0, ALICE, ""),
        (1, BOB, "canary"),
        (2, ALICE, ""),
        (3, ALICE, ""),
    ]


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

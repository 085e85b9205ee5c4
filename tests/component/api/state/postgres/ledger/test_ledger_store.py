"""The tables of the ledger: each row once, never changed, and of one tenant."""

import asyncio
import time
from datetime import timedelta
from typing import Any

import msgspec
import psycopg
import pytest

from api.state.postgres.database import Database
from api.state.postgres.ledger.ledger_store import SQL, LedgerStore
from cluster.errors import InvalidRequest
from tests.component.api.metering.ledger_rows import Ask
from tests.unit.usage_rows import TENANT, a_row, an_opening


def now_ms() -> int:
    return int(time.time() * 1000)


async def test_row_that_is_written_twice_is_there_once(store: LedgerStore, ask: Ask) -> None:
    row = a_row(now_ms())
    other = msgspec.structs.replace(row, attempt=2)
    assert await store.write([], [], [row, row, other]) == 2
    assert await store.write([], [], [other, row]) == 0
    assert ask("SELECT attempt FROM usage_ledger ORDER BY attempt") == [(1,), (2,)]


async def test_writers_of_the_same_rows_at_once_write_them_once(store: LedgerStore, ask: Ask) -> None:
    rows = [a_row(now_ms()) for _ in range(200)]
    added = await asyncio.gather(*(store.write([], [], rows if number % 2 else rows[::-1]) for number in range(4)))
    assert sum(added) == 200
    assert ask("SELECT count(*) FROM usage_ledger") == [(200,)]


async def test_all_columns_are_kept(store: LedgerStore, ask: Ask) -> None:
    row = a_row(now_ms(), end_user="ü", ttft_s=None, prefill_worker="p0", prefill_tokens=1, is_complete=False)
    await store.write([], [], [row])
    names = row.__struct_fields__
    (kept,) = ask(f"SELECT {', '.join(names)} FROM usage_ledger")
    values: dict[str, Any] = dict(zip(names, kept, strict=True))
    assert values | {"id": str(values["id"])} == msgspec.structs.asdict(row)


async def test_row_that_can_never_be_stored_is_refused_as_such(store: LedgerStore, ask: Ask) -> None:
    fields: list[dict[str, Any]] = [{"cached_tokens": 11}, {"model": "\0"}, {"cost_micros": 1 << 63}, {"tenant_id": ""}]
    for wrong in (a_row(now_ms(), **one) for one in fields):
        with pytest.raises(InvalidRequest, match="refuses"):
            await store.write([], [], [a_row(now_ms()), wrong])
    assert ask("SELECT count(*) FROM usage_ledger") == [(0,)]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE usage_ledger SET cost_micros = 0",
        "UPDATE usage_ledger SET end_user = ''",
        "DELETE FROM usage_ledger",
        "TRUNCATE usage_ledger",
        "TRUNCATE usage_ledger_default",
    ],
)
async def test_what_is_recorded_stays(store: LedgerStore, ask: Ask, statement: str) -> None:
    await store.write([], [], [a_row(now_ms(), end_user="u"), a_row(0, end_user="u")])
    with pytest.raises(psycopg.errors.RaiseException, match=r"never (changed|truncated)"):
        ask(statement)
    assert ask("SELECT count(*) FROM usage_ledger WHERE end_user = 'u' AND cost_micros = 7") == [(2,)]


async def test_id_and_time_of_a_row_belong_together(store: LedgerStore, ask: Ask) -> None:
    """So a row cannot be there twice with two times."""
    await store.write([], [], [a_row(now_ms())])
    columns = ", ".join(name for name in a_row().__struct_fields__)
    with pytest.raises(psycopg.errors.CheckViolation):
        copied = f"SELECT now() - interval '1 h', {columns} FROM usage_ledger"
        ask(f"INSERT INTO usage_ledger (started_at, {columns}) {copied}")


async def test_tenant_sees_its_own_rows_alone(store: LedgerStore, database: Database, postgres: str) -> None:
    other = "f" * 16
    await store.write([an_opening(tenant_id=other)], [], [a_row(now_ms()), a_row(now_ms(), tenant_id=other), a_row(0)])
    async with database.transaction(TENANT) as transaction:
        for table, number in (("usage_ledger", 2), ("usage_openings", 0), ("usage_writers", 0)):
            (row,) = await (await transaction.execute(f"SELECT count(*) AS n FROM {table}")).fetchall()
            assert (table, row["n"]) == (table, number)
    with psycopg.connect(postgres, autocommit=True) as connection:
        partitions = connection.execute("SELECT relname FROM pg_class WHERE relname LIKE 'usage_ledger_____\\___'")
        names = [name for (name,) in partitions.fetchall()] + ["usage_ledger_default"]
        assert len(names) == 3
        for setting, seen in (
            (TENANT, 0),
            ("*", 1),
        ):  # directly, no tenant sees anything
            connection.execute("SELECT set_config('app.tenant_id', %s, false)", [setting])
            for name in names:
                number = seen if name == "usage_ledger_default" else 0
                assert connection.execute(f"SELECT count(*) FROM {name}").fetchone() == (number,)


async def test_opening_ends_with_the_rows_of_its_request(store: LedgerStore, ask: Ask) -> None:
    one, other = an_opening(now_ms()), an_opening(now_ms())
    await store.write([one, other], [], [])
    await store.write([one], [], [])
    assert len(ask("SELECT id FROM usage_openings")) == 2
    await store.write([], [one.id], [a_row(id=one.id)])
    await store.write([one], [], [])  # replayed late
    assert [str(entry) for (entry,) in ask("SELECT id FROM usage_openings")] == [other.id]


async def test_writes_look_rows_up_by_their_key_however_many_there_are(
    store: LedgerStore, database: Database, ask: Ask
) -> None:
    for _ in range(3):
        await store.write([], [], [a_row(now_ms()) for _ in range(1000)])
    opening = msgspec.json.encode([an_opening(now_ms()) for _ in range(500)]).decode()
    interval = timedelta(seconds=90)
    for name, values in (
        ("open", {"openings": opening}),
        ("reap", {"lost_after": interval, "limit": 100}),
        ("unpublished", {"limit": 100}),
    ):
        async with database.transaction("*") as transaction:
            rows = await transaction.execute("EXPLAIN " + SQL[name], values)
            plan = "\n".join(str(row["QUERY PLAN"]) for row in await rows.fetchall())
        assert "Seq Scan on usage_ledger" not in plan, plan


@pytest.mark.parametrize("wrong", [{"tenant_id": ""}, {"prompt_tokens": -1}])
async def test_opening_that_could_not_end_as_lost_is_refused(store: LedgerStore, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="refuses"):
        await store.write([an_opening(now_ms(), **wrong)], [], [])


async def test_only_new_rows_go_to_the_outbox(database: Database, ask: Ask) -> None:
    publishing = LedgerStore(database, publishes=True)
    row = a_row(now_ms())
    await publishing.write([], [], [row])
    await publishing.write([], [], [row, a_row(now_ms())])
    assert ask("SELECT count(*) FROM usage_outbox") == [(2,)]


async def test_end_users_are_forgotten_with_their_tenant_alone(store: LedgerStore, ask: Ask) -> None:
    await store.write([], [], [a_row(now_ms(), end_user="u")])
    ask("INSERT INTO tenants (id, erasing_since) VALUES (%s, now())", TENANT)
    ask("UPDATE usage_ledger SET end_user = '' WHERE tenant_id = %s", TENANT)
    assert ask("SELECT end_user, cost_micros FROM usage_ledger") == [("", 7)]
    with pytest.raises(psycopg.errors.RaiseException):
        ask("UPDATE usage_ledger SET cost_micros = 0")

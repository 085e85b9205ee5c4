"""Sums of the ledger, against a model that counts row by row, and over HTTP."""

import asyncio
import random
import time
from collections import defaultdict
from typing import Any

import httpx
import msgspec
import pytest

from api.charging.spent import LedgerSpent
from api.identity.tenants import tenant_of_key
from api.limits.counters import window_end_ms, window_start_ms
from api.limits.limits import LimitKind, LimitScope, ScopeKind
from api.routes import usage as routes
from api.state.lifecycle import ChatState
from api.state.postgres.database import EVERY_TENANT, MIGRATIONS, Database
from api.state.postgres.ledger import ledger_jobs
from api.state.postgres.ledger.entries import UsageRow, arrival_ms
from api.state.postgres.ledger.ledger_jobs import LedgerJobs
from api.state.postgres.ledger.ledger_store import SQL, LedgerStore
from api.state.postgres.ledger.usage_sums import UsageSums
from api.wire.organization.usage import GROUPS, Sums, UsageQuery, split
from cluster.errors import InvalidRequest
from tests.component.accounts import OPERATOR, Accounts
from tests.component.api.metering.ledger_rows import Ask
from tests.component.app_with_fakes import FakeFrontend, an_app
from tests.unit.usage_rows import JUNE_MS, TENANT, a_row, an_opening

OTHER = "f" * 16
DAY_MS = 86_400_000


def some_rows(chance: random.Random) -> list[UsageRow]:
    """Of several tenants, keys, users, models and outcomes, in five days around the end of a month."""
    return [
        a_row(
            JUNE_MS - 2 * DAY_MS + chance.randrange(5 * DAY_MS),
            attempt=chance.choice([1, 1, 2]),
            is_last=chance.random() < 0.8,
            tenant_id=chance.choice([TENANT, TENANT, OTHER]),
            project_id=chance.choice(["proj_a", "proj_b"]),
            key_id=chance.choice(["key_a", "key_b"]),
            end_user=chance.choice(["", "u", "v"]),
            model=chance.choice(["m", "n"]),
            outcome=chance.choice(["finished", "finished", "aborted", "failed", "rejected", "lost"]),
            prompt_tokens=chance.randrange(4, 100),
            generated_tokens=chance.randrange(100),
            cost_micros=chance.randrange(100),
            currency=chance.choice(["usd", "eur"]),
        )
        for _ in range(400)
    ]


def counted(rows: list[UsageRow], tenant: str, query: UsageQuery) -> list[Sums]:
    """The sums, row by row."""
    found: dict[tuple[Any, ...], list[UsageRow]] = defaultdict(list)
    allowed = (query.project_ids, query.user_ids, query.api_key_ids, query.models, query.tenant_ids)
    for row in rows:
        at = arrival_ms(row.id) // 1000
        columns = (row.project_id, row.end_user, row.key_id, row.model)
        values = (*columns, row.tenant_id)
        is_wanted = all(names is None or value in names for names, value in zip(allowed, values, strict=True))
        if query.start <= at < query.end and tenant in (EVERY_TENANT, row.tenant_id) and is_wanted:
            named = dict(zip(GROUPS, columns, strict=True)) | {"tenant_id": row.tenant_id, "currency": row.currency}
            names = ("tenant_id", *GROUPS, "currency")
            groups = [named[name] if name in query.group_by else None for name in names]
            found[(at - at % query.width_s, *groups)].append(row)
    return sorted((summed(key, all_of) for key, all_of in found.items()), key=str)


def summed(key: tuple[Any, ...], rows: list[UsageRow]) -> Sums:
    known = [row for row in rows if row.outcome != "lost"]
    bucket, *groups = key
    return Sums._make(
        [
            bucket,
            *groups,
            sum(row.prompt_tokens for row in known),
            sum(row.cached_tokens for row in known),
            sum(row.generated_tokens for row in known),
            0,
            sum(row.cost_micros for row in known),
            sum(row.is_last and row.outcome != "rejected" for row in known),
            len(rows) - len(known),
        ]
    )


async def test_sums_are_those_of_a_model_that_counts_row_by_row(store: LedgerStore, database: Database) -> None:
    chance = random.Random(21)
    rows = some_rows(chance)
    await store.write([], [], rows)
    sums = UsageSums(database)
    for _ in range(60):
        width_s = chance.choice([3600, 86400, 1 << 40])
        start = JUNE_MS // 1000 - chance.randrange(3 * 86400)
        query = UsageQuery(
            start - start % width_s,
            start + chance.randrange(1, 5 * 86400),
            width_s,
            7,
            tuple(chance.sample([*GROUPS, "tenant_id", "currency"], chance.randrange(4))),
            chance.choice([None, ["proj_a"], ["proj_a", "proj_b"]]),
            chance.choice([None, ["u"], ["u", ""]]),
            chance.choice([None, ["key_b"], ["key_c"]]),
            chance.choice([None, ["m"]]),
            chance.choice([None, None, [OTHER], [TENANT, OTHER]]),
        )
        tenant = chance.choice([TENANT, OTHER, EVERY_TENANT])
        assert sorted(await sums.sums(tenant, query), key=str) == counted(rows, tenant, query)


async def test_more_results_than_a_page_has_are_cut_after_one_more(store: LedgerStore, database: Database) -> None:
    await store.write([], [], [a_row(end_user=str(number)) for number in range(20)])
    query = UsageQuery(JUNE_MS // 1000 - 86400, JUNE_MS // 1000 + 86400, 86400, 7, ("user_id",), max_rows=5)
    assert len(await UsageSums(database).sums(TENANT, query)) == 6


async def test_bucket_with_more_results_than_a_page_has_goes_on_in_the_next_page(
    store: LedgerStore, database: Database
) -> None:
    """With the collation of the database, and in the next bucket."""
    users = ["", "a", "A", "b", "é", "z", "Z", "_", "10", "9"]
    days = [JUNE_MS, JUNE_MS + 86_400_000]
    rows = [a_row(at, end_user=user, tenant_id=one) for at in days for user in users for one in (TENANT, OTHER)]
    await store.write([], [], rows)
    query = UsageQuery(JUNE_MS // 1000 - 86400, JUNE_MS // 1000 + 2 * 86400, 86400, 7, ("tenant_id", "user_id"))
    whole = await UsageSums(database).sums(EVERY_TENANT, query)
    left: UsageQuery | None = query._replace(max_rows=3)
    found, num_pages = list[Sums](), 0
    while left is not None:
        on_page, left = split(left, await UsageSums(database).sums(EVERY_TENANT, left.on_page()))
        assert len(on_page) <= 3
        found, num_pages = [*found, *on_page], num_pages + 1
    assert found == whole and len(whole) == len(rows)
    assert num_pages == 2 * 7  # of each day: six with three results, and one with the others


async def test_query_that_takes_too_long_says_what_to_change(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SQL, "usage", "SELECT pg_sleep(30)")
    with pytest.raises(InvalidRequest, match="ask for less time"):
        await UsageSums(database).sums(TENANT, UsageQuery(0, 1, 60, 1, ()))


@pytest.fixture
async def http(state: ChatState) -> httpx.AsyncClient:
    app = an_app(FakeFrontend(), state=state)
    app.include_router(routes.router)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://baton")


async def test_client_sees_the_usage_and_the_costs_of_its_tenant(
    http: httpx.AsyncClient, state: ChatState, postgres: str
) -> None:
    database = Database(postgres, 2)
    await database.open()
    now_ms = int(time.time() * 1000)
    alice, bob = tenant_of_key("sk-alice"), tenant_of_key("sk-bob")
    rows = [a_row(now_ms, tenant_id=alice, cost_micros=1_500_000), a_row(now_ms, tenant_id=bob)]
    await LedgerStore(database).write([an_opening(tenant_id=alice)], [], rows)
    own = {"authorization": "Bearer sk-alice"}
    day = now_ms // 1000 - now_ms // 1000 % 86400
    asked: dict[str, Any] = {"start_time": day - 86400, "group_by": ["model", "project_id"]}
    page = (await http.get("/v1/organization/usage/completions", params=asked, headers=own)).json()
    assert [(one["start_time"], len(one["results"])) for one in page["data"]] == [(day - 86400, 0), (day, 1)]
    assert page["data"][1]["results"][0] | {"batch": None} == {
        "object": "organization.usage.completions.result",
        "input_tokens": 10,
        "input_cached_tokens": 4,
        "input_uncached_tokens": 6,
        "input_audio_tokens": 0,
        "output_tokens": 5,
        "output_audio_tokens": 0,
        "num_model_requests": 1,
        "project_id": "proj_0000000000000001",
        "user_id": None,
        "api_key_id": None,
        "model": "baton-demo",
        "batch": None,
        "service_tier": None,
    }
    assert (page["object"], page["has_more"], page["next_page"]) == ("page", False, None)
    costs = (await http.get("/v1/organization/costs", params={"start_time": day}, headers=own)).json()
    assert costs["data"][0]["results"][0]["amount"] == {"value": 1.5, "currency": "usd"}
    wrong = await http.get("/v1/organization/costs", params={"start_time": "x"}, headers=own)
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "start_time")
    await database.close()


def spent_of(rows: list[UsageRow], kind: str, scope_id: str, days: range) -> tuple[int, int]:
    """Row by row. `days`: since 1970."""
    column = {"project": "project_id", "key": "key_id", "end_user": "end_user", "model": "model"}.get(kind)
    found = [
        row
        for row in rows
        if row.tenant_id == TENANT
        and arrival_ms(row.id) // DAY_MS in days
        and row.outcome != "lost"
        and row.http_request
        and (column is None or getattr(row, column) == scope_id)
    ]
    return sum(row.prompt_tokens + row.generated_tokens for row in found), sum(row.cost_micros for row in found)


SCOPES = [("tenant", ""), ("project", "proj_a"), ("key", "key_b"), ("end_user", "u"), ("model", "n"), ("model", "none")]


async def test_budgets_have_spent_what_a_model_counts_row_by_row(store: LedgerStore, database: Database) -> None:
    """Whatever is written twice, alone or among new rows, and by several writers at once, counts once."""
    chance = random.Random(4)
    rows = [msgspec.structs.replace(row, http_request=chance.choice(["", "req_1"])) for row in some_rows(chance)]
    batches = [rows[:150], rows[100:300], rows[:200], rows[300:], rows[250:350], rows]
    await asyncio.gather(*(store.write([], [], batch) for batch in batches))
    sums = UsageSums(database)
    first = JUNE_MS // DAY_MS
    for days in (range(first - 3, first), range(first, first + 1), range(first - 2, first + 4)):
        for kind, scope_id in SCOPES:
            window = (days.start * 86400, days.stop * 86400)
            assert await sums.spent_by(TENANT, kind, scope_id, *window) == spent_of(rows, kind, scope_id, days)


async def test_sums_stay_when_a_partition_is_made_and_its_rows_are_moved(
    store: LedgerStore, database: Database, jobs: LedgerJobs
) -> None:
    at_ms = JUNE_MS - 400 * DAY_MS
    await store.write([], [], [a_row(at_ms)])
    day = at_ms // DAY_MS * 86400
    before = await UsageSums(database).spent_by(TENANT, "tenant", "", day, day + 86400)
    assert await jobs.make_partitions() > 0
    assert await UsageSums(database).spent_by(TENANT, "tenant", "", day, day + 86400) == before == (15, 7)


async def test_sums_that_no_budget_needs_are_deleted(
    store: LedgerStore, jobs: LedgerJobs, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_jobs, "DAY_SUMS_AT_ONCE", 2)
    now_ms = int(time.time() * 1000)
    await store.write([], [], [a_row(now_ms - 40 * DAY_MS), a_row(now_ms - 70 * DAY_MS), a_row(now_ms - 80 * DAY_MS)])
    assert await jobs.drop_day_sums() == 8  # of the tenant, its project, its key and its model
    assert ask("SELECT count(*) FROM usage_day_sums") == [(4,)]


async def test_what_was_used_before_there_were_sums_counts(ask: Ask, store: LedgerStore, database: Database) -> None:
    now_ms = int(time.time() * 1000)
    text = (MIGRATIONS / "0019_usage_day_sums.sql").read_text()
    ask("DROP TABLE usage_day_sums; DROP FUNCTION baton_add_usage_to_sums CASCADE")
    await store.write([], [], [a_row(now_ms), a_row(now_ms), a_row(now_ms, outcome="lost")])
    ask(text)
    await store.write([], [], [a_row(now_ms)])
    day = now_ms // DAY_MS * 86400
    assert await UsageSums(database).spent_by(TENANT, "tenant", "", day, day + 86400) == (45, 21)


async def test_keys_that_rotations_have_made_have_spent_together(database: Database, store: LedgerStore) -> None:
    accounts = Accounts.of(database)
    tenant = await accounts.tenant()
    first, other = await accounts.key(tenant), await accounts.key(tenant)
    second = await accounts.keys.rotate(first.key.id, OPERATOR)
    third = await accounts.keys.rotate(second.key.id, OPERATOR)
    keys = [issued.key.id for issued in (first, second, third, other)]
    await store.write([], [], [a_row(tenant_id=tenant, key_id=key) for key in keys])
    sums, window = UsageSums(database), (JUNE_MS / 1000, JUNE_MS / 1000 + 60)
    assert await sums.spent_by(tenant, "key", keys[0], *window) == (45, 21)
    assert await sums.spent_by(tenant, "key", keys[3], *window) == (15, 7)


async def test_row_of_an_ingress_whose_clock_is_ahead_counts_for_its_own_day_alone(
    database: Database, store: LedgerStore
) -> None:
    """A budget of a day that begins begins with what is spent of it."""
    await store.write([], [], [a_row(key_id="key_a"), a_row(JUNE_MS + 3 * DAY_MS, key_id="key_a")])
    spent = LedgerSpent(lambda: UsageSums(database))
    key = LimitScope(ScopeKind.KEY, "key_a")
    first = window_start_ms(LimitKind.TOKENS_PER_DAY, JUNE_MS)
    days = [(first + day * DAY_MS, first + (day + 1) * DAY_MS) for day in range(4)]
    assert [(await spent.spent(TENANT, key, *day)).tokens for day in days] == [15, 0, 0, 15]
    month_end = window_end_ms(LimitKind.TOKENS_PER_MONTH, first)
    assert (await spent.spent(TENANT, key, first, month_end)).tokens == 30


async def test_query_of_a_tenant_sums_its_rows_alone_even_where_all_rows_are_visible(
    store: LedgerStore, database: Database
) -> None:
    """Row-level security is not all that keeps the usage of tenants apart."""
    await store.write([], [], [a_row(), a_row(tenant_id=OTHER)])
    day = JUNE_MS // 1000 - JUNE_MS // 1000 % 86400
    names = ("project_ids", "user_ids", "api_key_ids", "models", "tenant_ids", "after", "first")
    values = {
        "width": 86400,
        "by": ["tenant_id"],
        "start": day,
        "end": day + 86400,
        "limit": 9,
        "after": None,
        "first": None,
    }
    async with database.transaction(EVERY_TENANT) as transaction:
        found = await transaction.execute(SQL["usage"], {**dict.fromkeys(names), **values, "tenant": TENANT})
        assert [row["tenant_id"] for row in await found.fetchall()] == [TENANT]
        asked = {"tenant": TENANT, "kind": "tenant", "scope_id": "", "start": day, "end": day + 86400}
        row = await (await transaction.execute(SQL["spent_by"], asked)).fetchone()
    assert row is not None and row["tokens"] == 15

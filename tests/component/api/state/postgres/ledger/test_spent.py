"""What scopes have spent, as budgets and reconciliation ask the ledger: against a model that counts row by row."""

import random
from collections.abc import Callable

import pytest

from api.limits.limits import ScopeKind
from api.state.postgres.database import EVERY_TENANT, Database
from api.state.postgres.ledger.entries import UsageRow, arrival_ms
from api.state.postgres.ledger.ledger_store import LedgerStore
from api.state.postgres.ledger.usage_sums import Spent, UsageSums, spent
from tests.unit.usage_rows import JUNE_MS, TENANT, a_row

OTHER = "f" * 16
DAY_MS = 86_400_000
DAY = JUNE_MS // DAY_MS * 86_400, (JUNE_MS // DAY_MS + 1) * 86_400
ID_OF: dict[ScopeKind, Callable[[UsageRow], str]] = {
    ScopeKind.KEY: lambda row: row.key_id,
    ScopeKind.PROJECT: lambda row: row.project_id,
    ScopeKind.TENANT: lambda row: "",
    ScopeKind.END_USER: lambda row: row.end_user,
    ScopeKind.MODEL: lambda row: row.model,
}


def some_rows() -> list[UsageRow]:
    """In the two days around JUNE_MS. Names are those of several scopes: only the column tells them apart."""
    chance = random.Random(7)
    return [
        a_row(
            JUNE_MS + chance.randrange(-DAY_MS, DAY_MS),
            tenant_id=chance.choice([TENANT, TENANT, OTHER]),
            project_id=chance.choice("abc"),
            key_id=chance.choice("abc"),
            end_user=chance.choice(["", "a", "b", "c"]),
            model=chance.choice("abc"),
            http_request=chance.choice(["req_1", "req_1", "req_1", ""]),
            outcome=chance.choice(["finished", "finished", "aborted", "failed", "lost"]),
            prompt_tokens=chance.randrange(4, 100),
            generated_tokens=chance.randrange(100),
            cost_micros=chance.randrange(1, 100_000),
        )
        for _ in range(300)
    ]


def is_charged(row: UsageRow) -> bool:
    """Neither what Baton asked by itself, nor what nobody knows of."""
    return bool(row.http_request) and row.outcome != "lost"


def summed(rows: list[UsageRow]) -> Spent:
    return Spent(sum(row.prompt_tokens + row.generated_tokens for row in rows), sum(row.cost_micros for row in rows))


@pytest.mark.parametrize("kind", ScopeKind)
async def test_scope_has_spent_what_its_own_rows_say(store: LedgerStore, database: Database, kind: ScopeKind) -> None:
    rows = some_rows()
    await store.write([], [], rows)
    sums = UsageSums(database)
    for tenant in (TENANT, OTHER):
        of_tenant = [row for row in rows if row.tenant_id == tenant and is_charged(row)]
        of_tenant = [row for row in of_tenant if DAY[0] <= arrival_ms(row.id) / 1000 < DAY[1]]
        for scope_id in {ID_OF[kind](row) for row in of_tenant} - (set() if kind is ScopeKind.TENANT else {""}):
            own = [row for row in of_tenant if ID_OF[kind](row) == scope_id]
            assert await sums.spent_by(tenant, kind, scope_id, *DAY) == summed(own)
    nobody = "" if kind is ScopeKind.TENANT else "nobody"
    assert await sums.spent_by("0" * 16, kind, nobody, *DAY) == Spent(0, 0)


@pytest.mark.parametrize("kind", ScopeKind)
async def test_all_scopes_of_a_kind_have_spent_what_their_own_rows_say(
    store: LedgerStore, database: Database, kind: ScopeKind
) -> None:
    rows = some_rows()
    await store.write([], [], rows)
    async with database.transaction(EVERY_TENANT) as transaction:
        pages = spent(transaction, TENANT, kind, JUNE_MS / 1000, JUNE_MS / 1000 + 43_200, within_s=30)
        found = {scope_id: Spent(one.tokens, one.cost_micros) async for page in pages for scope_id, one in page}
    charged = [row for row in rows if row.tenant_id == TENANT and is_charged(row)]
    charged = [row for row in charged if JUNE_MS <= arrival_ms(row.id) < JUNE_MS + 43_200_000]
    ids = {ID_OF[kind](row) for row in charged}
    assert charged and found == {
        scope_id: summed([row for row in charged if ID_OF[kind](row) == scope_id]) for scope_id in ids
    }

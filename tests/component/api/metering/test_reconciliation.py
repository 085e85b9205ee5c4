"""The ledger against counters of engines and of budgets."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from api.metering import reconciliation
from api.metering.differences import BudgetScope, EngineCount, Finding
from api.metering.reconciliation import Reconciliation, ReconciliationReport
from api.state.postgres.database import Database, Transaction
from api.state.postgres.ledger import usage_sums
from api.state.postgres.ledger.ledger_jobs import RECONCILIATION_LOCK, LedgerJobs
from api.state.postgres.ledger.ledger_store import SQL, LedgerStore
from api.state.postgres.ledger.usage_sums import SCOPES_AT_ONCE
from tests.component.accounts import OPERATOR, Accounts
from tests.component.api.metering.ledger_rows import Ask
from tests.expected import present
from tests.unit.usage_rows import JUNE_MS, TENANT, a_row, an_opening

START, END = JUNE_MS / 1000 - 3600, JUNE_MS / 1000 + 3600
OF_TENANT = BudgetScope("tenant", TENANT, "", "td", False, START, END)
COST_OF_TENANT = OF_TENANT._replace(counter="cd", is_cost=True)
OF_KEY = BudgetScope("key", TENANT, "KEY_A", "td", False, START, END)
OF_USER = BudgetScope("end_user", TENANT, "U", "cd", True, START, END)


class FakeBudgets:
    """Counters that have the names of the ledger in capitals."""

    def __init__(self, counters: dict[BudgetScope, int]) -> None:
        self.counters = counters
        self.is_away = False

    def scope_id(self, kind: str, id: str) -> str:
        return id.upper()

    async def scopes(self) -> dict[str, list[str]] | None:
        tenants = dict.fromkeys(scope.tenant for scope in self.counters)
        return None if self.is_away else {tenant: [tenant] for tenant in tenants}

    async def settled(self, tenant: str, scopes: Sequence[str]) -> Mapping[BudgetScope, int] | None:
        assert scopes == [tenant]
        return {scope: amount for scope, amount in self.counters.items() if scope.tenant == tenant}

    async def add(self, scope: BudgetScope, amount: int) -> bool:
        if not self.is_away:
            self.counters[scope] += amount
        return not self.is_away


class CountingBudgets(FakeBudgets):
    """Counts the names that it is asked for."""

    named = most = 0

    def scope_id(self, kind: str, id: str) -> str:
        self.named += 1
        self.most = max(self.most, self.named)
        return super().scope_id(kind, id)


@pytest.fixture
async def written(store: LedgerStore) -> None:
    """Two requests of 15 tokens each, one of them of the key and of the user."""
    await store.write([], [], [a_row(key_id="key_a", end_user="u"), a_row(prefill_worker="p0", prefill_tokens=1)])


async def report_of(reconciliation: Reconciliation, *engines: EngineCount) -> ReconciliationReport:
    return present(await reconciliation.run(engines))


@pytest.mark.usefixtures("written")
async def test_ledger_equals_the_counters_of_the_engines(jobs: LedgerJobs) -> None:
    engines = (EngineCount("d0", 10, START), EngineCount("p0", 1, START), EngineCount("d1", 0, START))
    report = await report_of(Reconciliation(jobs, None), *engines)
    assert [one.finding for one in report.workers] == [Finding.EQUAL] * 3


@pytest.mark.usefixtures("written")
async def test_tokens_that_the_ledger_lacks_are_reported(
    jobs: LedgerJobs, store: LedgerStore, caplog: pytest.LogCaptureFixture
) -> None:
    report = await report_of(Reconciliation(jobs, None), EngineCount("d0", 12, START), EngineCount("d9", 1, START))
    assert [one.finding for one in report.workers] == [Finding.MISSING, Finding.MISSING]
    assert "has counted 12 tokens, and the ledger has 10" in caplog.text
    await store.write([], [], [a_row(worker_tokens=1, is_complete=False)])
    (worker,) = (await report_of(Reconciliation(jobs, None), EngineCount("d0", 12, START))).workers
    assert (worker.finding, worker.in_ledger, worker.open_ended) == (Finding.EXPLAINED, 11, 1)


@pytest.mark.usefixtures("written")
async def test_ledger_wins_over_the_counters_of_budgets(jobs: LedgerJobs) -> None:
    right = {OF_TENANT: 30, COST_OF_TENANT: 14, OF_KEY: 15, OF_USER: 7}
    wrong = FakeBudgets({OF_TENANT: 0, COST_OF_TENANT: 100, OF_KEY: 100, OF_USER: 7})
    job = Reconciliation(jobs, wrong)
    first = await report_of(job)
    assert first.budgets == {OF_TENANT: 30, COST_OF_TENANT: -86, OF_KEY: -85}
    assert first.corrected == {}
    assert (await report_of(job)).corrected == first.budgets
    assert wrong.counters == right
    assert (await report_of(job)).corrected == {}
    assert wrong.counters == right


async def test_usage_of_a_rotated_key_counts_for_its_lineage(
    jobs: LedgerJobs, store: LedgerStore, database: Database
) -> None:
    accounts = Accounts.of(database)
    tenant = await accounts.tenant()
    old = await accounts.key(tenant)
    new = await accounts.keys.rotate(old.key.id, OPERATOR)
    await store.write([], [], [a_row(tenant_id=tenant, key_id=issued.key.id) for issued in (old, new)])
    first = OF_KEY._replace(tenant=tenant, scope_id=old.key.id.upper())
    budgets = FakeBudgets({first: 0})
    assert (await report_of(Reconciliation(jobs, budgets))).budgets == {first: 30}


@pytest.mark.usefixtures("written")
async def test_counter_of_a_scope_without_usage_goes_back_to_zero(jobs: LedgerJobs) -> None:
    nobody = BudgetScope("model", "f" * 16, "m", "td", False, START, END)
    budgets = FakeBudgets({nobody: 5, OF_TENANT._replace(start=END, end=END + 1): 1})
    job = Reconciliation(jobs, budgets)
    for _ in range(2):
        await report_of(job)
    assert set(budgets.counters.values()) == {0}


@pytest.mark.usefixtures("written")
async def test_budgets_are_left_alone_while_records_wait(jobs: LedgerJobs, store: LedgerStore) -> None:
    budgets = FakeBudgets({OF_TENANT: 99})
    job = Reconciliation(jobs, budgets)
    await store.beat("i0", 3)
    await store.write([an_opening()], [], [])
    for _ in range(3):
        report = await report_of(job)
        assert (report.waiting, report.running, report.corrected) == (3, 1, {})
    await store.beat("i0", 0)
    assert (await report_of(job)).corrected == {OF_TENANT: -69}


@pytest.mark.usefixtures("written")
async def test_finished_prompts_of_a_request_that_is_open_are_no_difference(
    jobs: LedgerJobs, store: LedgerStore
) -> None:
    """Its whole reservation is taken off the counter until it ends. The ledger has 30 tokens beside it."""
    budgets = FakeBudgets({OF_TENANT: 30, OF_KEY: 15})
    job = Reconciliation(jobs, budgets)
    prompt = an_opening(http_request="req_several")
    await store.write([prompt], [], [a_row(http_request="req_several", key_id="key_a")])
    for _ in range(2):
        assert (await report_of(job)).budgets == {}
    await store.write([], [prompt.id], [])
    assert (await report_of(job)).budgets == {OF_TENANT: 15, OF_KEY: 15}


@pytest.mark.usefixtures("written")
async def test_request_that_stays_open_gives_nobody_a_budget_back(jobs: LedgerJobs, store: LedgerStore) -> None:
    """A client may give all of its requests the name of one that runs."""
    await store.write([an_opening(http_request="req_1")], [], [])
    budgets = FakeBudgets({OF_TENANT: 30, OF_KEY: 20})
    job = Reconciliation(jobs, budgets)
    for _ in range(2):
        await report_of(job)
    assert budgets.counters == {OF_TENANT: 30, OF_KEY: 15}


async def test_event_loop_is_free_between_some_end_users(jobs: LedgerJobs, store: LedgerStore) -> None:
    await store.write([], [], [a_row(end_user=f"u{number}") for number in range(3 * SCOPES_AT_ONCE)])
    budgets = CountingBudgets({OF_USER._replace(scope_id="U7"): 0})

    async def beat() -> None:
        while True:
            budgets.named = 0
            await asyncio.sleep(0)

    beating = asyncio.create_task(beat())
    report = await report_of(Reconciliation(jobs, budgets))
    beating.cancel()
    assert report.budgets == {OF_USER._replace(scope_id="U7"): 7}
    assert 0 < budgets.most <= SCOPES_AT_ONCE


@pytest.mark.usefixtures("written")
async def test_tenant_whose_sums_take_too_long_keeps_no_other_from_being_corrected(
    jobs: LedgerJobs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def slow_for_some(transaction: Transaction, tenant: str, kind: str, start: float, end: float, _: float) -> Any:
        return usage_sums.spent(transaction, tenant, kind, start, end, 30.0 if tenant == TENANT else 0.001)

    monkeypatch.setattr(reconciliation, "spent", slow_for_some)
    monkeypatch.setitem(
        SQL,
        "spent",
        f"WITH slow AS MATERIALIZED (SELECT pg_sleep(0.05)) {SQL['spent']}".replace(
            "FROM usage_ledger u", "FROM slow, usage_ledger u"
        ),
    )
    of_other = OF_TENANT._replace(tenant="f" * 16)
    budgets = FakeBudgets({of_other: 5, OF_TENANT: 0})
    job = Reconciliation(jobs, budgets)
    for _ in range(2):
        assert (await report_of(job)).skipped == [of_other.tenant]
    assert budgets.counters == {of_other: 5, OF_TENANT: 30}
    assert f"budgets of tenant {of_other.tenant} are not compared" in caplog.text


@pytest.mark.usefixtures("written")
async def test_redis_that_is_away_leaves_budgets_for_a_later_run(jobs: LedgerJobs) -> None:
    budgets = FakeBudgets({OF_TENANT: 0})
    job = Reconciliation(jobs, budgets)
    await report_of(job)
    budgets.is_away = True
    assert (await report_of(job)).budgets == {}


@pytest.mark.usefixtures("written")
async def test_one_replica_reconciles_at_a_time(jobs: LedgerJobs, ask: Ask) -> None:
    async with jobs.alone(RECONCILIATION_LOCK):
        assert await Reconciliation(jobs, None).run() is None
    assert await Reconciliation(jobs, None).run() is not None

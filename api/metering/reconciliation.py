"""The reconciliation: compares the ledger with the counters of engines and of budgets, and corrects those of budgets.
The ledger wins. One replica does it at a time.

Budgets are not corrected while a live ingress has records that it has not written: the ledger is then behind the
counters, and would give tenants back what they have used. What a process that is gone has left in its spool is not
known until another process has replayed it. A counter that was lowered meanwhile is raised by a later run.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from api.metering.differences import (
    BudgetScope,
    EngineCount,
    Finding,
    WorkerDifference,
    budget_difference,
    corrections,
    groups,
    worker_difference,
)
from api.metering.recorder import LOST_AFTER_S
from api.state.postgres.database import Transaction
from api.state.postgres.ledger.ledger_jobs import RECONCILIATION_LOCK, LedgerJobs
from api.state.postgres.ledger.usage_sums import ScopeSpent, SumTooSlow, WorkerTokens, of_workers, spent, unsettled

logger = logging.getLogger("baton.metering")


TENANT_PATIENCE_S = 30.0
"""How long the sums of one tenant's budgets may take, in seconds. Shorter leaves budgets of tenants with many rows
uncorrected; longer keeps the partitions of the ledger from being made or dropped for longer.
"""


class BudgetCounters(Protocol):
    """The counters of budgets that have been settled, in Redis. Reservations of running requests are not in them."""

    def scope_id(self, kind: str, id: str) -> str:
        """The `scope_id` of a scope that the ledger names by this id."""
        ...

    async def scopes(self) -> Mapping[str, Sequence[str]] | None:
        """The names of the scopes that have counters, by tenant. None while Redis is away."""
        ...

    async def settled(self, tenant: str, scopes: Sequence[str]) -> Mapping[BudgetScope, int] | None:
        """The counters of these scopes. None while Redis is away."""
        ...

    async def add(self, scope: BudgetScope, amount: int) -> bool:
        """Add to a counter, in one step with what requests add meanwhile. False while Redis is away."""
        ...


class ReconciliationReport(NamedTuple):
    workers: list[WorkerDifference]
    budgets: dict[BudgetScope, int]
    """What the ledger has beyond the counter, for each scope in which the two differ."""
    corrected: dict[BudgetScope, int]
    """What was added to the counters."""
    skipped: list[str]
    """Tenants of which some budgets were not compared: the ledger took too long."""
    running: int
    """Requests that ran meanwhile."""
    waiting: int
    """Records that were not written yet. If there are some, no budget was corrected."""


class _Budgets:
    """One look at all budgets: one tenant after another, each in a transaction of its own, so that a tenant with many
    rows keeps no other from being corrected. In memory are the counters of one tenant, and all differences.
    """

    def __init__(self, jobs: LedgerJobs, counters: BudgetCounters, before: Mapping[BudgetScope, int]) -> None:
        self._jobs = jobs
        self._counters = counters
        self._before = before
        self.differences: dict[BudgetScope, int] = {}
        """What the ledger has beyond each counter that differs from it, with what is corrected taken off."""
        self.found: dict[BudgetScope, int] = {}
        """The same before the correction."""
        self.corrected: dict[BudgetScope, int] = {}
        self.skipped: list[str] = []

    async def look(self) -> bool:
        """False if another replica has begun to look. Raises StateUnavailable."""
        for tenant, scopes in (await self._counters.scopes() or {}).items():
            try:
                if not await self._look_at(tenant, scopes):
                    return False
            except SumTooSlow:
                self.skipped.append(tenant)
                logger.error("budgets of tenant %s are not compared: its usage cannot be summed up in time", tenant)
        return True

    async def _look_at(self, tenant: str, scopes: Sequence[str]) -> bool:
        """The counters are read while no other replica may correct them. False if another one does."""
        async with self._jobs.alone(RECONCILIATION_LOCK) as transaction:
            if transaction is None:
                return False
            now = asyncio.get_running_loop().time
            until = now() + TENANT_PATIENCE_S
            _, waiting = await unsettled(transaction, LOST_AFTER_S)
            settled = await self._counters.settled(tenant, scopes) or {}
            for (kind, start, end), of_group in groups(settled).items():
                in_ledger = spent(transaction, tenant, kind, start, end, until - now())
                known = await self._known(in_ledger, kind, of_group)
                differences = _differences(of_group, settled, known)
                self.found |= differences
                if not waiting:
                    await self._correct(differences)
                self.differences |= differences
        return True

    async def _known(
        self, spent: AsyncIterator[list[tuple[str, ScopeSpent]]], kind: str, scopes: Sequence[BudgetScope]
    ) -> dict[str, ScopeSpent]:
        """What the ledger has of scopes that have counters, by their `scope_id`."""
        known = {scope.scope_id: ScopeSpent(0, 0, 0, 0) for scope in scopes}
        async for some in spent:
            for id, found in some:
                if (name := self._counters.scope_id(kind, id)) in known:
                    known[name] = found
        return known

    async def _correct(self, differences: dict[BudgetScope, int]) -> None:
        for scope, amount in corrections(differences, self._before).items():
            if not await self._counters.add(scope, amount):
                break
            self.corrected[scope] = amount
            differences[scope] -= amount


class Reconciliation:
    def __init__(self, jobs: LedgerJobs, budgets: BudgetCounters | None) -> None:
        self._jobs = jobs
        self._budgets = budgets
        self._before: dict[BudgetScope, int] = {}
        """The differences of budgets at the last run."""

    async def run(self, engines: Sequence[EngineCount] = ()) -> ReconciliationReport | None:
        """Compare once. `engines`: counters that were read before, by worker. None if another replica is at it. Raises
        StateUnavailable.
        """
        before, self._before = self._before, {}
        async with self._jobs.alone(RECONCILIATION_LOCK) as transaction:
            if transaction is None:
                return None
            running, waiting = await unsettled(transaction, LOST_AFTER_S)
            workers = await _workers(transaction, engines, running)
        report = ReconciliationReport(workers, {}, {}, [], running, waiting)
        if self._budgets is not None:
            budgets = _Budgets(self._jobs, self._budgets, before)
            if not await budgets.look():
                return None
            self._before = budgets.differences
            report = report._replace(budgets=budgets.found, corrected=budgets.corrected, skipped=budgets.skipped)
        _log(report)
        return report


def _differences(
    scopes: Sequence[BudgetScope], settled: Mapping[BudgetScope, int], known: Mapping[str, ScopeSpent]
) -> dict[BudgetScope, int]:
    differences: dict[BudgetScope, int] = {}
    for scope in scopes:
        found = known[scope.scope_id]
        amounts = (found.cost_micros, found.open_cost) if scope.is_cost else (found.tokens, found.open_tokens)
        if difference := budget_difference(settled[scope], *amounts):
            differences[scope] = difference
    return differences


async def _workers(transaction: Transaction, engines: Sequence[EngineCount], running: int) -> list[WorkerDifference]:
    if not engines:
        return []
    names, since = [count.worker for count in engines], min(count.since for count in engines)
    known = await of_workers(transaction, names, since)
    return [worker_difference(count, *known.get(count.worker, WorkerTokens(0, 0)), running) for count in engines]


def _log(report: ReconciliationReport) -> None:
    for worker in report.workers:
        if worker.finding in (Finding.MISSING, Finding.SURPLUS):
            text = "the engine of %s has counted %d tokens, and the ledger has %d of it, beside %d unread ones (%s)"
            logger.error(text, worker.worker, worker.counted, worker.in_ledger, worker.unread, worker.finding)
    for scope, amount in report.corrected.items():
        logger.warning("the budget of %s is corrected by %d", scope, amount)

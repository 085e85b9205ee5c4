"""Sums over the ledger of usage: for clients, for operators, and for the reconciliation of counters."""

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import NamedTuple

from psycopg.errors import QueryCanceled

from api.state.postgres.database import Database, Transaction, fetch_all, fetch_one
from api.state.postgres.ledger.ledger_store import SQL
from api.wire.organization.usage import Sums, UsageQuery
from cluster.errors import InvalidRequest, StateUnavailable

SUMS_LOCK = 0xBA7015
"""The key of an advisory lock in PostgreSQL that sums share, and that whoever makes or drops partitions has alone: sums
take seconds, and who waits for them with a lock on the table would keep writes of the ledger waiting, too.
"""

SCOPES_AT_ONCE = 500
"""Scopes whose sums are taken from PostgreSQL at once. More keeps the event loop from requests for longer, by some 4 us
each where their names are hashed; fewer takes more round trips.
"""


class WorkerTokens(NamedTuple):
    """What the ledger has of one worker."""

    tokens: int
    open_ended: int
    """Attempts whose engine may have counted more than reached the ingress."""


class Spent(NamedTuple):
    tokens: int
    cost_micros: int


class ScopeSpent(NamedTuple):
    tokens: int
    cost_micros: int
    open_tokens: int
    """The part of `tokens` that requests have used of which some prompts still run: in counters, such a request is
    open as a whole.
    """
    open_cost: int
    """The same part of `cost_micros`."""


class SumTooSlow(Exception):
    """A sum over the ledger takes longer than it may."""


class Unsettled(NamedTuple):
    running: int
    """Requests that run, or whose end is not known yet."""
    waiting: int
    """Records that live ingress processes have not written, as far as they have said."""


class UsageSums:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def spent_by(self, tenant: str, kind: str, scope_id: str, start: float, end: float) -> Spent:
        """What a scope of a tenant has used between two Unix times, at which days of UTC begin. `scope_id`: empty for
        the tenant itself. Raises StateUnavailable.
        """
        async with self._database.transaction(tenant) as transaction:
            values = {"tenant": tenant, "kind": kind, "scope_id": scope_id, "start": start, "end": end}
            row = await (await transaction.execute(SQL["spent_by"], values, prepare=False)).fetchone()
        assert row is not None
        return Spent(row["tokens"], row["cost_micros"])

    async def sums(self, tenant: str, query: UsageQuery) -> list[Sums]:
        """The sums of the buckets that have usage, in the order of time. `tenant`: EVERY_TENANT for all. At most
        `query.max_rows` and one more.

        Raises:
            InvalidRequest: the query takes too long.
            StateUnavailable: PostgreSQL is away.
        """
        values = {
            "tenant": tenant,
            "width": query.width_s,
            "by": list(query.group_by),
            "start": query.start,
            "end": query.end,
            "project_ids": query.project_ids,
            "user_ids": query.user_ids,
            "api_key_ids": query.api_key_ids,
            "models": query.models,
            "tenant_ids": query.tenant_ids,
            "limit": query.max_rows + 1,
            "first": query.start - query.start % query.width_s,
            "after": list(query.after) or None,
        }
        try:
            async with self._database.transaction(tenant) as transaction:
                await transaction.execute(SQL["begin_sum"], {"lock": SUMS_LOCK})
                # A plan for any tenant would be one without the index
                rows = await (await transaction.execute(SQL["usage"], values, prepare=False)).fetchall()
        except StateUnavailable as error:
            if not isinstance(error.__cause__, QueryCanceled):
                raise
            text = "the sum over this time takes too long: ask for less time with start_time and end_time"
            raise InvalidRequest(text, "start_time", "query_too_broad") from error
        return [Sums(**row) for row in rows]


async def of_workers(transaction: Transaction, workers: Sequence[str], since: float) -> dict[str, WorkerTokens]:
    """What the engines of some workers have counted, as far as the ledger knows, by worker. `since`: Unix time of the
    start of the oldest of them.
    """
    rows = await fetch_all(transaction, SQL["of_workers"], workers=list(workers), since=since)
    return {row["worker"]: WorkerTokens(row["tokens"], row["open_ended"]) for row in rows}


async def unsettled(transaction: Transaction, lost_after_s: float) -> Unsettled:
    """What is not in the ledger yet."""
    row = await fetch_one(transaction, SQL["unsettled"], lost_after=timedelta(seconds=lost_after_s))
    assert row is not None
    return Unsettled(row["running"], row["waiting"])


async def spent(
    transaction: Transaction, tenant: str, kind: str, start: float, end: float, within_s: float
) -> AsyncIterator[list[tuple[str, ScopeSpent]]]:
    """What each scope of a kind of a tenant has used in a time, by its id, some scopes at a time. PostgreSQL keeps the
    rest meanwhile. Raises SumTooSlow: the transaction can then do no more.
    """
    values = {"tenant": tenant, "kind": kind, "start": start, "end": end}
    await transaction.execute(SQL["end_within"], {"milliseconds": f"{max(1, round(within_s * 1000))}ms"})
    try:
        async with transaction.cursor("spent") as cursor:
            await cursor.execute(SQL["spent"], values)
            while rows := await cursor.fetchmany(SCOPES_AT_ONCE):
                yield [(row.pop("scope_id"), ScopeSpent(**row)) for row in rows]
    except QueryCanceled as error:
        raise SumTooSlow from error

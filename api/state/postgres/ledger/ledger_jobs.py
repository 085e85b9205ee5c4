"""What keeps the ledger of usage in order: partitions, lost requests, the outbox. One process at a time does each."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import NamedTuple

from api.state.postgres.database import EVERY_TENANT, Database, Row, Transaction, fetch_all, fetch_one
from api.state.postgres.ledger.ledger_store import SQL
from api.state.postgres.ledger.usage_sums import SUMS_LOCK

MONTHS_AHEAD = 2
"""Months after the current one whose partitions are made ahead. More makes empty tables; fewer puts rows into the
default partition if no process has run the job for that long.
"""
STRAYS_AT_ONCE = 3
"""Months whose rows one run moves out of the default partition. More holds the lock on the ledger for longer; fewer
takes more runs after a clock was wrong.
"""
LOST_AT_ONCE = 5000
"""Requests that one transaction ends as lost. More makes a longer transaction; fewer takes more of them."""
DAY_SUMS_KEPT_DAYS = 62
"""Days for which sums of days are kept. More takes disk, a row for each key, project, end user and model that was used
on the day; fewer than a month has, and a few for wrong clocks, would let budgets of a month forget its begin.
"""
DAY_SUMS_AT_ONCE = 5000
"""Sums that one transaction deletes. More makes a longer transaction; fewer takes more of them."""
UPKEEP_LOCK, RECONCILIATION_LOCK, PUBLISHER_LOCK = 0xBA7012, 0xBA7013, 0xBA7014
"""Keys of advisory locks in PostgreSQL: each lets one process do a job at a time."""
SUMS_PATIENCE_S = 6.0
"""How long the job that makes and drops partitions waits for sums that run, in seconds. PostgreSQL ends a sum after
5 s. Shorter lets a month's partition wait until nobody sums; longer keeps further sums waiting if PostgreSQL hangs.
"""
TABLE_PATIENCE_S = 0.5
"""How long that job waits for the lock on the ledger once no sum runs, in seconds. Writes of the ledger queue behind
this wait, and end it in milliseconds. Shorter fails on a busy server; longer delays the ledger.
"""
UPKEEP_TIMEOUT_S = 60.0
"""How long one transaction of a job may take, in seconds. Shorter fails on a busy server; longer finds a hanging server
later.
"""


class Reaped(NamedTuple):
    """The requests of processes that are gone."""

    ended: int
    lost: int
    """Those of them that had no rows yet, and have a row now that says so."""


class LedgerJobs:
    def __init__(self, database: Database) -> None:
        self._database = database

    @asynccontextmanager
    async def alone(self, lock: int) -> AsyncIterator[Transaction | None]:
        """A transaction of the only process that has the lock. None if another process has it. Raises
        StateUnavailable.
        """
        async with self._database.transaction(EVERY_TENANT, UPKEEP_TIMEOUT_S) as transaction:
            await transaction.execute("SET LOCAL statement_timeout = '60s'")
            await transaction.execute("SET LOCAL idle_in_transaction_session_timeout = '60s'")  # jobs wait for Redis
            row = await fetch_one(transaction, SQL["alone"], lock=lock)
            yield transaction if row is not None and row["alone"] else None

    async def reap(self, lost_after_s: float) -> Reaped:
        """End what processes have opened that were not heard of for so long. Raises StateUnavailable."""
        ended = lost = 0
        while True:
            async with self.alone(UPKEEP_LOCK) as transaction:
                if transaction is None:
                    return Reaped(ended, lost)
                values = {"lost_after": timedelta(seconds=lost_after_s), "limit": LOST_AT_ONCE}
                row = await fetch_one(transaction, SQL["reap"], **values)
                assert row is not None
                ended, lost = ended + row["ended"], lost + row["lost"]
                if row["ended"] < LOST_AT_ONCE:
                    await transaction.execute(SQL["forget_writers"], values)
                    return Reaped(ended, lost)

    async def make_partitions(self) -> int:
        """Make the partitions of this month and the next ones, and of past months whose rows lie in the default
        partition. Returns their number. Raises StateUnavailable.
        """
        async with self.alone(UPKEEP_LOCK) as transaction:
            if transaction is None:
                return 0
            missing = await fetch_all(transaction, SQL["missing_partitions"], ahead=MONTHS_AHEAD, strays=STRAYS_AT_ONCE)
        made = [await self._reshape("make_partition_of", month=row["month"]) for row in missing]
        return sum(bool(row and row["made"]) for row in made)

    async def drop_partitions(self, keep_days: float) -> list[str]:
        """Drop the partitions whose rows are all older than this, by their own time and by the time at which they were
        written. Returns their names. Raises StateUnavailable.
        """
        keep = timedelta(days=keep_days)
        async with self.alone(UPKEEP_LOCK) as transaction:
            if transaction is None:
                return []
            names = [row["name"] for row in await fetch_all(transaction, SQL["old_partitions"], keep=keep)]
        dropped = [await self._reshape("drop_partition", name=name, keep=keep) for name in names]
        return [name for name, row in zip(names, dropped, strict=True) if row and row["dropped"]]

    async def drop_day_sums(self) -> int:
        """Delete the sums of days that no budget needs any more. Returns their number. Raises StateUnavailable."""
        number = 0
        while True:
            async with self.alone(UPKEEP_LOCK) as transaction:
                if transaction is None:
                    return number
                values = {"keep_days": DAY_SUMS_KEPT_DAYS, "limit": DAY_SUMS_AT_ONCE}
                deleted = (await transaction.execute(SQL["drop_day_sums"], values)).rowcount
            number += deleted
            if deleted < DAY_SUMS_AT_ONCE:
                return number

    async def _reshape(self, statement: str, **values: object) -> Row | None:
        """Make or drop one partition, for which nobody may read the ledger. The wait for readers comes before the lock
        on the table, behind which writes would queue. None if another process is at the partitions, or reconciles.
        """
        async with self.alone(UPKEEP_LOCK) as transaction:
            if transaction is None:
                return None
            row = await fetch_one(transaction, SQL["alone"], lock=RECONCILIATION_LOCK)
            if row is None or not row["alone"]:
                return None
            await _wait_for_locks(transaction, SUMS_PATIENCE_S)
            await transaction.execute(SQL["hold_sums"], {"lock": SUMS_LOCK})
            await _wait_for_locks(transaction, TABLE_PATIENCE_S)
            return await fetch_one(transaction, SQL[statement], **values)

    async def unpublished(self, transaction: Transaction, limit: int) -> list[Row]:
        """The oldest rows of the outbox. Its `id` is None if the ledger has it no longer. Raises StateUnavailable."""
        return await fetch_all(transaction, SQL["unpublished"], limit=limit)

    async def published(self, transaction: Transaction, numbers: Sequence[int]) -> None:
        await transaction.execute(SQL["published"], {"numbers": list(numbers)})

    async def trim_outbox(self, transaction: Transaction, most: int) -> int:
        """Drop the oldest rows of the outbox beyond `most`. Returns their number."""
        row = await fetch_one(transaction, SQL["trim_outbox"], most=most)
        return int(row["dropped"]) if row else 0


async def _wait_for_locks(transaction: Transaction, patience_s: float) -> None:
    await transaction.execute("SELECT set_config('lock_timeout', %s, true)", [f"{round(patience_s * 1000)}ms"])

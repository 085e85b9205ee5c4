"""Takes records of usage from sessions without making them wait, and writes them into the ledger in batches.

Each record is appended to the spool first (api/metering/spool.py), then it is kept in memory, then it is written. So:

- A process that is killed loses no record that it has taken: the next process that looks replays the spool.
- While PostgreSQL is away, records are in the spool, which is synced to the disk once a second. Memory keeps a bounded
  number of them; what is beyond is read back from the spool when its turn has come.
- A batch may be written twice. The key of the ledger makes its rows be there once.

While the disk takes nothing, records are in memory alone, and are lost with the process. Where neither takes more,
`is_full` says so, and what comes nevertheless is counted as lost.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from api.metering.record_queue import Closed, Opened, Record, RecordQueue, Withdrawn, read_records
from api.metering.spool import LeftOver, ledgers_in, left_over, put_aside
from api.state.postgres.ledger.entries import Opening, UsageRow
from cluster.ending import end_tasks
from cluster.errors import InvalidRequest, ServingError, StateUnavailable
from cluster.metrics.tenants import USAGE_RECORDS

logger = logging.getLogger("baton.metering")

MOST_AT_ONCE = 1000
"""Records of one transaction. More catches up faster after an outage; fewer keeps a transaction shorter."""
INTERVAL_S = 0.2
"""The time in which records are collected for a transaction, in seconds. Shorter makes more transactions, which cost
CPU; longer shows usage later, and replays more after a crash.
"""
RETRY_S = 1.0
"""The time between two tries while PostgreSQL is away, in seconds, and between two syncs of the spool. Shorter costs
more CPU and disk writes; longer loses more if the machine loses its power meanwhile.
"""
BEAT_INTERVAL_S = 10.0
"""The time between two signs of life of a process, and between two looks for spools of processes that are gone, in
seconds. Shorter costs transactions; longer needs a longer LOST_AFTER_S.
"""
LOST_AFTER_S = 90.0
"""Time without a sign of life after which the requests of a process count as lost, in seconds. Shorter takes a process
for dead whose connection to PostgreSQL fails; longer shows lost requests as running for longer.
"""


class LedgerWriter(Protocol):
    """The part of `LedgerStore` that the recorder needs."""

    async def write(self, openings: Sequence[Opening], closed: Sequence[str], rows: Sequence[UsageRow]) -> int: ...

    async def identity(self) -> str: ...

    async def beat(self, ingress: str, waiting: int) -> None: ...

    async def leave(self, ingress: str) -> None: ...


class UsageRecorder:
    def __init__(self, writer: Callable[[], LedgerWriter], folder: Path, ingress: str) -> None:
        """`writer`: raises StateUnavailable before PostgreSQL is reached. `folder`: of this machine, for spools.
        Raises OSError if the folder cannot be written.
        """
        self._writer = writer
        self._folder = folder
        self._ingress = ingress
        self._queue = RecordQueue(folder)
        self._ledger: str | None = None
        """The id of the ledger. None before PostgreSQL is reached."""
        self._told: set[str] = set()
        """Names of spools of which nobody knows whose they are, and that the log has."""
        self._problem: str | None = None
        """Why the last try failed. None if it did not."""
        self.beating_since: float | None = None
        """The event loop's time since which no sign of life has failed. None after a failure."""
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(keep()) for keep in (self._keep_writing, self._keep_beating, self._keep_adopting)
        ]

    @property
    def is_full(self) -> bool:
        """Whether no record can be taken now. A request that begins nevertheless may not be in the ledger."""
        return self._queue.is_full

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    def opened(self, opening: Opening) -> None:
        self._queue.put(Opened(opening))

    def closed(self, rows: list[UsageRow]) -> None:
        """A request has ended. `rows`: at least one."""
        self._queue.put(Closed(rows))

    def withdrawn(self, id: str) -> None:
        """A request has ended that was never placed. `id`: of its opening."""
        self._queue.put(Withdrawn(id))

    async def drained(self, patience_s: float) -> int:
        """Wait until all records are written, but not longer than this. Returns the number of those that wait."""
        await asyncio.sleep(0)  # an entry is opened in the next turn of the event loop
        try:
            async with asyncio.timeout(patience_s):
                await self._queue.is_empty.wait()
        except TimeoutError:
            logger.error("%d records of usage wait in %s for the next process", self.num_waiting, self._folder)
        return self.num_waiting

    async def close(self) -> None:
        """Stop. What waits stays in the spool, and the next process writes it."""
        await end_tasks(self._tasks)
        try:
            await self._writer().leave(self._ingress)
        except ServingError as error:
            logger.warning("the ledger still counts this ingress as one that runs: %s", error)
        self._queue.close()

    async def _keep_writing(self) -> None:
        while True:
            await self._queue.has_records.wait()
            if self.num_waiting < MOST_AT_ONCE:
                await asyncio.sleep(INTERVAL_S)
            try:
                if self._problem is not None:  # the reconciliation must know how far the ledger is behind
                    await self._writer().beat(self._ingress, self.num_waiting)
                batch = await self._queue.first(MOST_AT_ONCE)
                await self._write(batch)
            except Exception as error:  # every failure may be over at the next try, and no record may be lost by one
                self._note_problem(error)
                await self._queue.sync()
                await asyncio.sleep(RETRY_S)
                continue
            self._queue.written(len(batch))
            if self._problem is not None:
                logger.warning("records of usage are written again")
                self._problem = None

    async def _write(self, records: Sequence[Record]) -> None:
        """A record that the ledger can never take is put aside, so that it does not keep the others waiting. Raises
        StateUnavailable.
        """
        if not records:
            return
        closed = [record.rows for record in records if isinstance(record, Closed)]
        ended = {rows[0].id for rows in closed}
        ended |= {record.id for record in records if isinstance(record, Withdrawn)}
        openings = [
            record.opening for record in records if isinstance(record, Opened) and record.opening.id not in ended
        ]
        try:
            await self._writer().write(openings, sorted(ended), [row for rows in closed for row in rows])
            USAGE_RECORDS.labels("written").inc(len(records))
        except InvalidRequest as error:
            if len(records) == 1:
                USAGE_RECORDS.labels("refused").inc()
                await asyncio.to_thread(put_aside, self._folder, msgspec.json.encode(records[0]), str(error))
                return
            half = len(records) // 2
            await self._write(records[:half])
            await self._write(records[half:])

    def _note_problem(self, error: Exception) -> None:
        problem = type(error).__name__
        if problem != self._problem:
            cause = None if isinstance(error, ServingError) else error
            logger.error("records of usage cannot be written, and wait: %s", error, exc_info=cause)
        self._problem = problem

    async def _keep_beating(self) -> None:
        while True:
            try:
                await self._writer().beat(self._ingress, self.num_waiting)
                if self.beating_since is None:
                    self.beating_since = asyncio.get_running_loop().time()
            except Exception as error:  # the next sign may arrive
                self.beating_since = None
                if not isinstance(error, StateUnavailable):
                    logger.exception("the ledger does not hear that this ingress lives")
            await asyncio.sleep(BEAT_INTERVAL_S)

    async def _keep_adopting(self) -> None:
        while True:
            try:
                await self.adopt()
            except StateUnavailable:
                pass
            except Exception:  # the next look may succeed
                logger.exception("spools of usage that are left over cannot be replayed")
            await asyncio.sleep(BEAT_INTERVAL_S)

    async def adopt(self) -> int:
        """Write what processes have left that are gone and that wrote into the same ledger. Returns the number of
        records.

        Raises:
            OSError: a spool cannot be read or deleted.
            StateUnavailable: PostgreSQL is away.
        """
        if self._ledger is None:
            ledger = await self._writer().identity()
            self._queue.mark(ledger)
            self._ledger = ledger
        number = 0
        for found in left_over(self._folder):
            if not self._is_ours(found, self._ledger):
                continue
            for path in found.segments:
                records = await asyncio.to_thread(read_records, path)
                for first in range(0, len(records), MOST_AT_ONCE):
                    await self._write(records[first : first + MOST_AT_ONCE])
                number += len(records)
                self._queue.drop(path)
            found.done()
        if number:
            logger.warning("%d records of usage of processes that are gone are written", number)
        self._queue.measure(self._ledger)
        return number

    def _is_ours(self, found: LeftOver, ledger: str) -> bool:
        """A process that has never reached its database has not said which one it is. Where only this service has
        spools, it was of this service.
        """
        if found.ledger:
            return found.ledger == ledger
        if ledgers_in(self._folder) <= {ledger}:
            return True
        if found.name not in self._told:
            self._told.add(found.name)
            text = "nobody knows whose records of usage %s in %s has: several services share the folder"
            logger.error(text, found.name, self._folder)
        return False

"""The records of usage that wait to be written: in the spool, and a bounded number of them in memory.

Records are in segments, as in the spool. The oldest segment is written first. When memory has enough, a segment that is
complete is kept in its file alone, and is read back when its turn has come.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from api.metering.spool import SEGMENT_BYTES, Spool, num_bytes, put_aside, records_in
from api.metering.waiting_age import WaitingAge
from api.state.postgres.ledger.entries import Opening, UsageRow
from cluster.metrics.tenants import LEDGER_LAG, USAGE_RECORDS, USAGE_RECORDS_WAITING
from cluster.unreadable import UNREADABLE

logger = logging.getLogger("baton.metering")

MAX_IN_MEMORY = 50_000
"""Records that wait in memory, 1 kB each or so. More takes memory of the ingress during an outage; fewer reads records
back from the disk sooner.
"""
MAX_SPOOL_BYTES = 1 << 30
"""Bytes of the spools of a ledger in a folder when `is_full` begins: a million requests or so. More takes disk during
an outage; fewer refuses requests, or loses their records, sooner.
"""


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """A request has begun."""

    opening: Opening


class Closed(msgspec.Struct, frozen=True, tag="closed"):
    """A request has ended."""

    rows: list[UsageRow]
    """Not empty. All of one entry."""


class Withdrawn(msgspec.Struct, frozen=True, tag="withdrawn"):
    """A request has ended that was never placed. It has no rows."""

    id: str
    """Of its entry."""


Record = Opened | Closed | Withdrawn


class _Segment:
    """The records of one segment that are not written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: deque[Record] | None = deque()
        """None if they are in the file alone."""
        self.number = 0
        self.is_in_file = True
        """All records are in the file."""


class RecordQueue:
    def __init__(self, folder: Path) -> None:
        """Raises OSError if the folder cannot be written."""
        self._folder = folder
        self._spool = Spool(folder)
        self._segments = deque([_Segment(self._spool.segment)])
        """The oldest first. The last one is written now."""
        self._num_bytes = num_bytes(folder, None)
        """Bytes of the spools in the folder, as far as this process knows."""
        self._num_in_memory = 0
        self._is_losing = False
        self._age = WaitingAge()
        LEDGER_LAG.set_function(self.age_s)
        self.has_records = asyncio.Event()
        self.is_empty = asyncio.Event()
        self.is_empty.set()

    def __len__(self) -> int:
        return sum(segment.number for segment in self._segments)

    def age_s(self) -> float:
        """Seconds for which the oldest record has waited, 0 if none waits."""
        return self._age.age_s(time.monotonic())

    @property
    def is_full(self) -> bool:
        return self._num_bytes >= MAX_SPOOL_BYTES or self._num_in_memory >= 2 * MAX_IN_MEMORY

    def put(self, record: Record) -> None:
        """Keep a record. It is lost if `is_full`."""
        if self.is_full:
            self._lose()
            return
        self._is_losing = False
        segment = self._segments[-1]
        before = self._spool.size
        try:
            self._spool.append(msgspec.json.encode(record))
        except OSError as error:
            if segment.is_in_file:
                logger.error("records of usage are in memory alone, the spool cannot be written: %s", error)
            segment.is_in_file = False
        self._num_bytes += self._spool.size - before
        assert segment.records is not None
        segment.records.append(record)
        segment.number += 1
        self._num_in_memory += 1
        USAGE_RECORDS_WAITING.inc()
        self._age.come(time.monotonic())
        if self._spool.size >= SEGMENT_BYTES:
            self._rotate()
        self.is_empty.clear()
        self.has_records.set()

    async def first(self, most: int) -> list[Record]:
        """The oldest records, of one segment. Raises OSError."""
        segment = self._segments[0]
        if segment.records is None:
            segment.records = deque(await asyncio.to_thread(read_records, segment.path))
            num_damaged = segment.number - len(segment.records)
            USAGE_RECORDS_WAITING.dec(num_damaged)
            self._age.gone(num_damaged)
            segment.number = len(segment.records)
            self._num_in_memory += segment.number
        return [segment.records[at] for at in range(min(most, segment.number))]

    def written(self, number: int) -> None:
        """The first records are written. A segment is deleted with its last one."""
        segment = self._segments[0]
        assert segment.records is not None
        for _ in range(number):
            segment.records.popleft()
        segment.number -= number
        self._num_in_memory -= number
        USAGE_RECORDS_WAITING.dec(number)
        self._age.gone(number)
        if segment.number:
            return
        if len(self._segments) > 1:
            self._segments.popleft()
            self.drop(segment.path)
        if not len(self):
            self.has_records.clear()
            self.is_empty.set()

    def drop(self, path: Path) -> None:
        """Delete a segment of any process. Its records are written."""
        try:
            size = path.stat().st_size
            path.unlink()
            self._num_bytes -= size
        except OSError as error:
            logger.error("a segment that is written stays in the spool: %s", error)

    def mark(self, ledger: str) -> None:
        """Say which ledger the records are for. Raises OSError."""
        self._spool.mark(ledger)

    def measure(self, ledger: str) -> None:
        """Look how much the spools of all processes take that write into this ledger. Raises OSError."""
        self._num_bytes = num_bytes(self._folder, ledger)

    async def sync(self) -> None:
        """Write the newest segment to the disk."""
        try:
            await asyncio.to_thread(self._spool.sync)
        except OSError as error:
            logger.error("the spool of usage cannot be synced: %s", error)

    def close(self) -> None:
        """Stop. What waits is left for another process."""
        USAGE_RECORDS_WAITING.dec(len(self))
        self._spool.close(is_written=not len(self))

    def _lose(self) -> None:
        USAGE_RECORDS.labels("lost").inc()
        if not self._is_losing:
            logger.error("records of usage are lost: %d wait, and there is no room for more", len(self))
        self._is_losing = True

    def _rotate(self) -> None:
        full = self._segments[-1]
        try:
            self._spool.rotate()
        except OSError as error:
            logger.error("the spool of usage stays in its segment: %s", error)
            return
        self._segments.append(_Segment(self._spool.segment))
        if self._num_in_memory > MAX_IN_MEMORY and full.is_in_file and full is not self._segments[0]:
            self._num_in_memory -= full.number
            full.records = None


def read_records(path: Path) -> list[Record]:
    """The records of a segment that are whole: none if the file is gone. Raises OSError."""
    try:
        return list(_decoded(records_in(path), path))
    except FileNotFoundError:
        logger.error("%s is gone, and its records of usage are lost", path)
        return []


def _decoded(texts: Iterable[bytes], path: Path) -> Iterator[Record]:
    decoder = msgspec.json.Decoder(Record)
    for text in texts:
        try:
            yield decoder.decode(text)
        except UNREADABLE as error:
            USAGE_RECORDS.labels("refused").inc()
            put_aside(path.parent, text, f"it is of another version: {error}")

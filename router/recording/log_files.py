"""StimulusLog: the files of the stimulus log, written by a thread of its own, so that the Scheduler never waits.

The event loop collects records in batches, and the thread encodes and writes them. Between both is a bounded queue:
what is too much is dropped and counted, a `LogGap` marks the place, and the next file begins with a snapshot. The same
happens when writing fails. A file is full after `file_bytes` or FILE_S; then the loop takes a snapshot of the state,
with which the next one begins.

Files are `<folder>/<UTC time>-<process>-<number>.stimuli`, mode 0600. Their names sort by time. What has another name
is left alone.
"""

import asyncio
import logging
import os
import re
import secrets
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Final, NamedTuple, final

import msgspec

from cluster import compiled
from cluster.config.scheduler import SchedulerConfig, StimulusLogConfig
from cluster.messages.ids import CellName
from cluster.metrics.scheduler import SNAPSHOT, STIMULI_LOST, STIMULUS_BYTES
from cluster.network.handshake import VERSION
from cluster.slo import SloConfig
from router.recording.frames import encoded, encoded_header
from router.recording.records import FORMAT, LogGap, LogHeader, Record, Stimulus
from router.recording.snapshot import SnapshotError, SnapshotPart, capture, encodable
from router.state import RouterState

logger = logging.getLogger("baton.scheduler")

BATCH_BYTES: Final = 1 << 16
"""Bytes of records after which a batch goes to the thread. More loses more with the process, and has the thread stop
the loop for longer while it encodes; fewer wakes the thread more often.
"""
BATCH_S: Final = 0.25
"""Age at which a smaller batch goes to the thread, in seconds. Longer loses more with the process; shorter wakes the
thread more often.
"""
MAX_QUEUED_BYTES: Final = 1 << 26
"""Bytes of records that wait for the thread. More takes memory while the disk is slow; fewer drops records sooner."""
FILE_S: Final = 3600.0
"""Age at which a file ends, in seconds. Longer has a replay compute more before the time that is asked for; shorter
takes more snapshots.
"""
RETRY_S: Final = 60.0
"""Time from a gap to the next file, in seconds. Longer loses more records after the disk was full; shorter takes more
snapshots while it is.
"""
MOST_SNAPSHOT_BLOCKS: Final = 1 << 20
"""KV blocks in the prefix index up to which snapshots are taken. With more, a log can be replayed from the Scheduler's
start only. Higher stops the Scheduler for longer, while the blocks are copied; lower leaves large clusters without
snapshots.
"""
SNAPSHOT_SHARE: Final = 4
"""Least size of a file, as a multiple of its snapshot. Higher has a replay compute more before the time that is asked
for; lower fills the disk with snapshots.
"""
WRITTEN_S: Final = 60.0
"""Time since the last write to a file of another Scheduler after which it counts as closed, in seconds. Workers report
several times a second. Longer lets files of a Scheduler that has ended take more room than `max_bytes`; shorter may
remove a file that is written.
"""
PAUSE_S: Final = 0.001
"""Pause of the thread after each part of a snapshot, in seconds: the loop goes on meanwhile. Longer has records wait
for longer behind a snapshot; shorter delays placements.
"""
CLOSE_S: Final = 5.0
"""Time in which what was recorded is written as the Scheduler ends, in seconds. Longer delays its end while the disk is
slow; shorter loses the last records then.
"""
NAME: Final = re.compile(r"\d{8}T\d{6}-[0-9a-f]{8}-\d{6}\.stimuli")
KEPT: Final = (SloConfig,)
"""Classes of what was configured, which no snapshot has."""


class _NewFile(NamedTuple):
    header: LogHeader
    parts: list[SnapshotPart]


class _Batch(NamedTuple):
    records: list[Record]
    num_bytes: int


@final
class StimulusLog:
    """The side of the event loop."""

    def __init__(
        self,
        config: StimulusLogConfig,
        slo: SloConfig,
        max_indexed_blocks: int,
        *,
        max_queued_bytes: int = MAX_QUEUED_BYTES,
    ) -> None:
        """The first file begins with the first record."""
        self._slo, self._max_indexed_blocks = slo, max_indexed_blocks
        self.epoch = 0
        """The Scheduler's epoch, for the headers of files that begin from now on."""
        self._max_queued_bytes = max_queued_bytes
        self._loop = asyncio.get_running_loop()
        self._run = secrets.token_hex(4)
        self._code = compiled.folder().name
        self._num_files = 0
        self._batch: list[Record] = []
        self._batch_bytes = 0
        self._num_in = 0
        """Bytes of records that were given to the thread."""
        self._num_lost = 0
        """Records that were dropped since the last that was not."""
        self._is_exact = True
        """Nothing was lost since the last file began."""
        self._due_at = float("inf")
        """When the next file begins, however little is in this one."""
        self.is_due = False
        """Whether the next file is to begin, as far as the latest batch has shown."""
        self._flushing: asyncio.TimerHandle | None = None
        self._queue: SimpleQueue[_Batch | _NewFile | None] = SimpleQueue()
        self._writer = _Writer(config, self._queue)
        self._thread = threading.Thread(target=self._writer.run, name="baton-stimulus-log", daemon=True)
        self._thread.start()

    def add(self, record: Stimulus, num_bytes: int) -> None:
        """`num_bytes`: about what the record takes."""
        self._batch.append(record)
        self._batch_bytes += num_bytes
        if self._batch_bytes >= BATCH_BYTES:
            self.flush()
        elif self._flushing is None:
            self._flushing = self._loop.call_later(BATCH_S, self.flush)

    def begin_file(self, state: RouterState) -> None:
        began = time.perf_counter()
        parts: list[SnapshotPart] = []
        try:
            if state.index.num_blocks <= MOST_SNAPSHOT_BLOCKS:
                parts = capture(state, KEPT)
        except SnapshotError:
            logger.exception("no snapshot of the Scheduler could be taken for the stimulus log")
        SNAPSHOT.observe(time.perf_counter() - began)
        self.flush()
        self._begin(parts, has_snapshot=bool(parts))

    def flush(self) -> None:
        """Give the thread what has been collected, or drop it if too much waits."""
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        if not self._num_files:
            self._begin([], has_snapshot=False)
        if self._batch:
            batch, self._batch = self._batch, []
            num_bytes, self._batch_bytes = self._batch_bytes, 0
            if self._num_in + num_bytes - self._writer.num_out > self._max_queued_bytes:
                self._lose(len(batch))
            else:
                if self._num_lost:
                    batch.insert(0, LogGap(self._num_lost))
                    self._num_lost = 0
                self._queue.put(_Batch(batch, num_bytes))
                self._num_in += num_bytes
        self.is_due = self._is_due()

    def _is_due(self) -> bool:
        now, written = self._loop.time(), self._writer.written
        if written.number == self._num_files:
            if written.is_full:
                return True
            if written.has_failed and self._is_exact:
                self._is_exact, self._due_at = False, now + RETRY_S
        return now >= self._due_at

    def close(self) -> None:
        """Write what is there, for CLOSE_S at most. Blocks meanwhile."""
        self.flush()
        self._queue.put(None)
        self._thread.join(CLOSE_S)

    def _begin(self, parts: list[SnapshotPart], *, has_snapshot: bool) -> None:
        self._num_files += 1
        now = self._loop.time()
        header = LogHeader(
            format=FORMAT,
            protocol=VERSION,
            code=self._code,
            is_compiled=compiled.is_in_use(),
            run=self._run,
            number=self._num_files,
            epoch=self.epoch,
            wall_s=time.time(),
            loop_s=now,
            slo=self._slo,
            max_indexed_blocks=self._max_indexed_blocks,
            has_snapshot=has_snapshot,
            is_exact=self._is_exact,
        )
        self._num_lost = 0
        self._is_exact, self._due_at, self.is_due = True, now + FILE_S, False
        self._queue.put(_NewFile(header, parts))

    def _lose(self, number: int) -> None:
        self._num_lost += number
        STIMULI_LOST.inc(number)
        if self._is_exact:
            self._is_exact, self._due_at = False, self._loop.time() + RETRY_S


def start_log(config: SchedulerConfig, slo: SloConfig, cell: CellName | None) -> StimulusLog | None:
    """None if the config has no log. With several cells, each has a folder of its own."""
    where = config.stimulus_log
    if where is None:
        return None
    if cell is not None:
        where = msgspec.structs.replace(where, folder=str(Path(where.folder) / cell))
    return StimulusLog(where, slo, config.max_indexed_blocks)


class _Written(NamedTuple):
    """How far the thread has come."""

    number: int = 0
    """Number of the file."""
    num_bytes: int = 0
    is_full: bool = False
    has_failed: bool = False


@final
class _Writer:
    """The side of the thread. The loop reads `written` and `num_out`, each of which changes at once."""

    def __init__(self, config: StimulusLogConfig, queue: "SimpleQueue[_Batch | _NewFile | None]") -> None:
        self.written = _Written()
        self.num_out = 0
        """Bytes of records, as the loop counts them, that no longer wait."""
        self._folder = Path(config.folder)
        self._config = config
        self._queue = queue
        self._file: int | None = None
        """The descriptor of the file. None while none can be written."""
        self._full_bytes = config.file_bytes
        """Bytes from which the file is full."""
        self._never = threading.Event()

    def run(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, _NewFile):
                self._begin(item)
            else:
                self._write(item.records)
                self.num_out += item.num_bytes
        self._close()

    def _begin(self, new: _NewFile) -> None:
        self._close()
        self.written, self._full_bytes = _Written(new.header.number), sys.maxsize
        try:
            self._file = self._open(new.header)
            self._append(encoded_header(new.header))
        except OSError as error:
            self._fail(error)
        for part in new.parts:
            self._write([encodable(part)])
            self._never.wait(PAUSE_S)
        self._full_bytes = max(self._config.file_bytes, SNAPSHOT_SHARE * self.written.num_bytes)

    def _open(self, header: LogHeader) -> int:
        if not self._folder.is_dir():
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        elif self._folder.stat().st_mode & 0o077:
            logger.warning("others than its owner may use the folder of the stimulus log, %s", self._folder)
        began = time.strftime("%Y%m%dT%H%M%S", time.gmtime(header.wall_s))
        path = self._folder / f"{began}-{header.run}-{header.number:06d}.stimuli"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        remove_old(self._folder, path.name, self._config, header.wall_s)
        return file

    def _write(self, records: Sequence[Record]) -> None:
        if self._file is None:
            STIMULI_LOST.inc(len(records))
            return
        try:
            self._append(encoded(records))
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            STIMULI_LOST.inc(len(records))
            self._fail(error)

    def _append(self, frame: bytes) -> None:
        assert self._file is not None
        rest = memoryview(frame)
        while rest:
            rest = rest[os.write(self._file, rest) :]
        STIMULUS_BYTES.inc(len(frame))
        num_bytes = self.written.num_bytes + len(frame)
        self.written = self.written._replace(num_bytes=num_bytes, is_full=num_bytes >= self._full_bytes)

    def _fail(self, error: Exception) -> None:
        """The file has perhaps a part of a frame: nothing more is written to it."""
        logger.error("the stimulus log in %s cannot be written, and lacks what comes now: %s", self._folder, error)
        self._close()
        self.written = self.written._replace(has_failed=True)

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def remove_old(folder: Path, newest: str, config: StimulusLogConfig, now: float) -> None:
    """Remove the oldest files of the log, until the newest one has room. `now`: Unix time, in seconds.

    What another Scheduler writes stays: it would go on with a file that nobody can read, and that takes room until it
    is closed. Another process may remove files at the same time.
    """
    room = config.max_bytes - config.file_bytes
    for file in sorted((file for file in folder.iterdir() if NAME.fullmatch(file.name)), reverse=True):
        if file.name == newest:
            continue
        try:
            status = file.lstat()
        except FileNotFoundError:
            continue
        room -= status.st_size
        age_s = now - status.st_mtime
        is_written = age_s < WRITTEN_S and _run_of(file.name) != _run_of(newest)
        if not is_written and (room < 0 or age_s > config.max_age_s):
            file.unlink(missing_ok=True)


def _run_of(name: str) -> str:
    """The process that a file is of."""
    return name.split("-")[1]

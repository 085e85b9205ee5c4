"""The spool: a local file to which each record of usage is appended before anything else is done with it.

A record is one line: the CRC-32 of its JSON text in hexadecimal, a space, the text. Appending is one `write`, so a
record outlives a process that is killed at any moment after it. A machine that loses its power may lose what `sync` has
not written to the disk. A line that was written in part, or damaged, is skipped when the file is read.

A process writes segments, files of its own, one after another. It holds a lock on its lock file for as long as it
lives, so that another process can tell which segments are left over from a process that is gone. Several services may
share the folder: a lock file says which ledger the segments are for, as soon as its process has reached the database.
"""

import fcntl
import logging
import os
import secrets
import zlib
from collections.abc import Iterator
from pathlib import Path

logger = logging.getLogger("baton.metering")

FILE_MODE, FOLDER_MODE = 0o600, 0o700
"""Access of files and of their folder: they name tenants, keys and end users."""
SEGMENT_BYTES = 4 << 20
"""Size from which a segment is complete. Larger keeps more on the disk that is written already; smaller makes more
files.
"""
MAX_LINE_BYTES = 1 << 20
"""Longest line that is read. Longer takes memory for a damaged file; shorter could cut the record of a request with
hundreds of attempts, each of which takes a few kilobytes at most.
"""
MAX_REFUSED_BYTES = 16 << 20
"""Bytes of the file of records that cannot be written. More takes disk after a defect; fewer keeps less of what a
person may still enter by hand.
"""
MAX_UNSYNCED = 4
"""Complete segments that `sync` would still write to the disk. While PostgreSQL takes records nobody syncs, and the
oldest are given up. More holds files that are deleted already; fewer leaves more to the kernel in an outage.
"""
_LOCK, _SEGMENT, _REFUSED = ".lock", ".spool", "refused"


def encoded(text: bytes) -> bytes:
    """The line of a record."""
    return b"%08x %s\n" % (zlib.crc32(text), text)


def decoded(line: bytes) -> bytes | None:
    """The record of a line. None for a line that is damaged or incomplete."""
    text = line[9:-1]
    is_whole = line[8:9] == b" " and line.endswith(b"\n") and line[:8] == b"%08x" % zlib.crc32(text)
    return text if is_whole else None


def records_in(path: Path) -> Iterator[bytes]:
    """The records of a segment. Lines that are damaged are logged and skipped. Raises OSError."""
    num_damaged = 0
    with path.open("rb") as file:
        while line := file.readline(MAX_LINE_BYTES):
            if (record := decoded(line)) is None:
                num_damaged += 1
            else:
                yield record
    if num_damaged:
        logger.error("%s has %d incomplete or damaged lines, which are skipped", path, num_damaged)


def put_aside(folder: Path, record: bytes, why: str) -> None:
    """Keep a record that cannot be written in a file that is not replayed."""
    path = folder / _REFUSED
    logger.error("a record of usage cannot be written, and is put into %s: %s", path, why)
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, FILE_MODE)
        try:
            if os.fstat(file).st_size < MAX_REFUSED_BYTES:
                os.write(file, encoded(record))
        finally:
            os.close(file)
    except OSError as error:
        logger.error("%s cannot be written: %s", path, error)


class Spool:
    """The segments of this process. All methods are quick, except for `sync`. Raises OSError from all of them."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        self._folder = folder
        self._name = f"{os.getpid()}-{secrets.token_hex(8)}"
        self._number = 0
        self._lock = self._made_lock()
        self._file = self._opened()
        self._unsynced: list[int] = []
        """The files of complete segments that are not synced."""
        self.size = 0
        """Bytes of the segment that is written now."""

    @property
    def segment(self) -> Path:
        """The segment that is written now."""
        return self._folder / f"{self._name}.{self._number:08d}{_SEGMENT}"

    def mark(self, ledger: str) -> None:
        """Say which ledger the records are for. `ledger`: the id of a ledger."""
        os.pwrite(self._lock, ledger.encode(), 0)

    def append(self, record: bytes) -> None:
        line = encoded(record)
        written = os.write(self._file, line)
        if written < len(line):
            os.ftruncate(self._file, self.size)  # the disk is full
            raise OSError(f"{self.segment} takes no more")
        self.size += written

    def rotate(self) -> None:
        """Begin a new segment."""
        self._number += 1
        try:
            file = self._opened()
        except OSError:
            self._number -= 1
            raise
        self._unsynced.append(self._file)
        if len(self._unsynced) > MAX_UNSYNCED:
            os.close(self._unsynced.pop(0))
        self._file, self.size = file, 0

    def sync(self) -> None:
        """Write all segments to the disk. Other methods may be called meanwhile."""
        complete, self._unsynced = self._unsynced, []
        for file in complete:
            os.fsync(file)
            os.close(file)
        os.fsync(self._file)

    def close(self, *, is_written: bool) -> None:
        """Stop. `is_written`: nothing of what is left is needed; otherwise it is there for another process."""
        for file in (*self._unsynced, self._file):
            os.close(file)
        self._file = -1  # a record that comes too late finds no file, and not that of another number
        left = list(self._folder.glob(f"{self._name}.*{_SEGMENT}"))
        if is_written or not any(path.stat().st_size for path in left):
            for path in left:
                path.unlink(missing_ok=True)
            (self._folder / f"{self._name}{_LOCK}").unlink(missing_ok=True)
        os.close(self._lock)

    def _made_lock(self) -> int:
        """The file gets its name when it is locked, so that no process finds it without its lock."""
        new = self._folder / f"{self._name}.new"
        file = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        new.rename(self._folder / f"{self._name}{_LOCK}")
        return file

    def _opened(self) -> int:
        return os.open(self.segment, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, FILE_MODE)


class LeftOver:
    """The segments of a process that is gone. While they are held, no other process gets them."""

    def __init__(self, lock_file: Path, lock: int) -> None:
        self._lock_file = lock_file
        self._lock = lock

    @property
    def ledger(self) -> str:
        """The id of the ledger that the records are for. Empty if their process has never reached its database."""
        return _ledger_of(self._lock_file)

    @property
    def name(self) -> str:
        return self._lock_file.stem

    @property
    def segments(self) -> list[Path]:
        """In the order in which they were written."""
        return sorted(self._lock_file.parent.glob(f"{self._lock_file.stem}.*{_SEGMENT}"))

    def done(self) -> None:
        """All segments are replayed and deleted."""
        self._lock_file.unlink(missing_ok=True)

    def release(self) -> None:
        os.close(self._lock)


def left_over(folder: Path) -> Iterator[LeftOver]:
    """What processes have left that are gone. The lock of each is held until the next one is asked for. Raises
    OSError.
    """
    for lock_file in sorted(folder.glob(f"*{_LOCK}")):
        lock = _locked(lock_file)
        if lock is None:
            continue
        found = LeftOver(lock_file, lock)
        try:
            if lock_file.exists():  # another process may have been done with it before the lock was free
                yield found
        finally:
            found.release()


def ledgers_in(folder: Path) -> set[str]:
    """The ids of the ledgers that spools in a folder are for. Raises OSError."""
    return {_ledger_of(path) for path in folder.glob(f"*{_LOCK}")} - {""}


def num_bytes(folder: Path, ledger: str | None) -> int:
    """Bytes of all segments in a folder that are for this ledger or for an unknown one; of all segments for None."""
    others = {
        path.stem for path in folder.glob(f"*{_LOCK}") if ledger is not None and _ledger_of(path) not in ("", ledger)
    }
    segments = [path for path in folder.glob(f"*{_SEGMENT}") if path.name.partition(".")[0] not in others]
    return sum(path.stat().st_size for path in segments if path.exists())


def _ledger_of(lock_file: Path) -> str:
    try:
        return lock_file.read_text()
    except FileNotFoundError:
        return ""


def _locked(path: Path) -> int | None:
    """A lock file with its lock. None if another process has it, or if there is no such file."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file

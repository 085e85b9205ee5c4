"""LogReader: the records of a stimulus log, as far as they can be replayed.

A replay needs a state to begin with. That is the state of a Scheduler that has just started, or a snapshot. From there
on it may go through file after file of one process, until records are missing.
"""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from cluster.compiled import INTERPRETED, MODULES
from router.recording.frames import DamagedLog, TornLog, read_header, read_records
from router.recording.log_files import NAME
from router.recording.records import LogHeader, Record
from router.recording.snapshot import SnapshotPart

SNAPSHOT_MODULES = frozenset({*MODULES, *INTERPRETED})
"""The modules whose classes a snapshot may name."""


class LogFile(NamedTuple):
    path: Path
    header: LogHeader


class FileEnded(NamedTuple):
    """A file has ended otherwise than it should."""

    file: LogFile
    why: str
    is_torn: bool
    """The process ended while it wrote, which is the usual end of a log's last file."""


class NoLog(ValueError):
    """There is nothing to replay."""


def log_files(path: Path) -> tuple[list[LogFile], list[str]]:
    """The files of a log, the oldest first, and what is wrong with those that cannot be read. `path`: one file, or a
    folder.

    Raises:
        NoLog: No file can be read.
        OSError: The path cannot be read.
    """
    paths = sorted(file for file in path.iterdir() if NAME.fullmatch(file.name)) if path.is_dir() else [path]
    found: list[LogFile] = []
    wrong: list[str] = []
    for one in paths:
        try:
            with one.open("rb") as file:
                found.append(LogFile(one, read_header(file)))
        except DamagedLog as error:
            wrong.append(f"{one}: {error}")
    if not found:
        raise NoLog("\n".join(wrong) or f"{path} has no file of a stimulus log")
    return sorted(found, key=lambda file: (file.header.wall_s, file.header.number)), wrong


def first_needed(files: list[LogFile], since: float | None) -> int:
    """The place of the file with which a replay begins that is to know all from a time on."""
    first = 0
    for place, file in enumerate(files):
        if since is not None and can_begin(file.header) and file.header.wall_s <= since:
            first = place
    return first


def can_begin(header: LogHeader) -> bool:
    return header.number == 1 or header.has_snapshot


def goes_on(before: LogHeader, header: LogHeader) -> bool:
    """Whether a file has what came next after all of another one."""
    return header.run == before.run and header.number == before.number + 1 and header.is_exact


def records_of(file: LogFile) -> Iterator[Record | FileEnded]:
    """The records of a file. The last thing is a `FileEnded` if the file is damaged or torn."""
    with file.path.open("rb") as opened:
        read_header(opened)
        while True:
            try:
                records = read_records(opened)
            except DamagedLog as error:
                yield FileEnded(file, str(error), isinstance(error, TornLog))
                return
            if records is None:
                return
            yield from records


def snapshot_of(file: LogFile) -> list[SnapshotPart]:
    """The parts of a file's snapshot. Raises DamagedLog if it is not whole."""
    parts: list[SnapshotPart] = []
    with file.path.open("rb") as opened:
        read_header(opened)
        while not parts or parts[-1].layouts is None:
            records = read_records(opened)
            if records is None or not all(isinstance(record, SnapshotPart) for record in records):
                raise DamagedLog("the snapshot is not whole")
            parts += [record for record in records if isinstance(record, SnapshotPart)]
    return parts


def class_of(name: str) -> type | None:
    """A class that a snapshot may name, as `module:name`."""
    module, _, qualified = name.partition(":")
    if module not in SNAPSHOT_MODULES or not qualified.isidentifier():
        return None
    found = getattr(import_module(module), qualified, None)
    return found if isinstance(found, type) else None

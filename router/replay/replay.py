"""Replay: goes through the files of a stimulus log, and has each record applied to the right state.

A Scheduler process begins with a fresh state. Where records are missing, the state is inexact until the next snapshot:
decisions of that time are made again and not compared.
"""

from collections.abc import Callable
from typing import Protocol, final

from router.recording.frames import DamagedLog
from router.recording.records import LogGap, LogHeader, Stimulus
from router.recording.snapshot import SnapshotError, SnapshotPart, restore
from router.replay.log_reader import (
    FileEnded,
    LogFile,
    can_begin,
    class_of,
    first_needed,
    goes_on,
    records_of,
    snapshot_of,
)
from router.state import RouterState


class Applies(Protocol):
    """A Stepper (router/replay/stepper.py)."""

    def apply(self, record: Stimulus, /) -> None: ...


class Watch(Protocol):
    """What looks on."""

    def begins(self, header: LogHeader, state: RouterState, *, is_exact: bool) -> Applies:
        """Another state is gone on with. Returns what applies the records to it. `is_exact`: it is the state that the
        Scheduler had.
        """
        ...

    def file(self, header: LogHeader) -> None:
        """The records of another file follow."""
        ...

    def record(self, record: Stimulus, wall_s: float) -> None:
        """A record will be applied."""
        ...

    def inexact(self, why: str) -> None:
        """From here to the next exact `begins`, decisions may differ because records are missing."""
        ...


@final
class Replay:
    def __init__(self, files: list[LogFile], make_state: Callable[[LogHeader], RouterState], watch: Watch) -> None:
        self._files = files
        self._make_state = make_state
        self._watch = watch
        self._stepper: Applies | None = None
        self._before: LogHeader | None = None
        """The header of the file before. None if nothing can follow it."""
        self._now = 0.0
        """The latest time of a record."""

    def run(self, since: float | None, until: float | None) -> None:
        """`since`, `until`: Unix times, in seconds. Records before `since` are replayed as far as the state needs."""
        for file in self._files[first_needed(self._files, since) :]:
            if until is not None and file.header.wall_s > until:
                return
            if self._enter(file) and not self._go_through(file, until):
                return

    def _enter(self, file: LogFile) -> bool:
        """Whether the records of the file can be replayed."""
        header, before = file.header, self._before
        self._watch.file(header)
        self._now = header.loop_s
        self._before = header
        if before is not None and goes_on(before, header) and self._stepper is not None:
            return True
        self._stepper = None
        state, is_exact = self._make_state(header), can_begin(header)
        if not is_exact:
            self._watch.inexact(f"{file.path.name} has no snapshot, and the file before it is missing or not whole")
        elif header.number > 1:
            try:
                restore(snapshot_of(file), state, class_of)
            except (SnapshotError, DamagedLog) as error:
                self._watch.inexact(f"{file.path.name} cannot be begun with: {error}")
                return False
        self._stepper = self._watch.begins(header, state, is_exact=is_exact)
        return True

    def _go_through(self, file: LogFile, until: float | None) -> bool:
        """Returns False if the end of the time was reached."""
        for record in records_of(file):
            if isinstance(record, FileEnded):
                self._before = None
                self._watch.inexact(f"{file.path.name}: {record.why}")
            elif not isinstance(record, SnapshotPart):
                self._now = getattr(record, "now", self._now)
                wall_s = file.header.wall_time(self._now)
                if until is not None and wall_s > until:
                    return False
                if isinstance(record, LogGap):
                    self._before = None
                    self._watch.inexact(f"{file.path.name}: {record.num_lost} records are missing")
                self._apply(record, wall_s)
        return True

    def _apply(self, record: Stimulus, wall_s: float) -> None:
        assert self._stepper is not None
        self._watch.record(record, wall_s)
        self._stepper.apply(record)

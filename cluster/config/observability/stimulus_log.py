"""The part `stimulus_log:` of the section `scheduler:`. Pure."""

from typing import Annotated

import msgspec
from msgspec import Meta


class StimulusLogConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the Scheduler writes what it is told and what it decides, for `baton replay` (docs/replay.md)."""

    folder: Annotated[str, Meta(min_length=1)]
    """A folder on the Scheduler's node, which only the owner of the process may read. The Scheduler makes it if it is
    missing. With several cells, each has a folder of its own in it.
    """
    max_bytes: Annotated[int, Meta(ge=1 << 20)] = 1 << 30
    """Bytes of all files together. The oldest files are removed for new ones. More takes disk space; fewer forgets
    earlier.
    """
    max_age_s: Annotated[float, Meta(ge=60, le=31_536_000)] = 259_200.0
    """Age after which a file is removed, in seconds, counted from its last record. Three days by default. Longer keeps
    the ids of tenants for longer; shorter forgets earlier.
    """
    file_bytes: Annotated[int, Meta(ge=1 << 18, le=1 << 32)] = 1 << 26
    """Bytes from which the next file begins, with a snapshot of the Scheduler's state. A file also ends after an hour.
    A replay starts where a file does: larger files have it compute more before the time that is asked for; smaller ones
    stop the Scheduler more often, for as long as a snapshot takes.
    """

    def __post_init__(self) -> None:
        if self.file_bytes * 2 > self.max_bytes:
            raise ValueError(f"file_bytes is {self.file_bytes}, and may be half of max_bytes ({self.max_bytes})")

"""The section `scheduler:` of the config. Pure."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from cluster.config.node_choice import NodeChoice

MAX_INDEXED_BLOCKS: Final = 1 << 24
"""Default of `max_indexed_blocks`."""


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


class SchedulerConfig(NodeChoice, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the Scheduler treats requests, how much it keeps in memory, and where it runs."""

    max_indexed_blocks: Annotated[int, Meta(ge=1024, le=1 << 28)] = MAX_INDEXED_BLOCKS
    """KV blocks in the prefix index, of all workers together; a block that several workers cache counts once. The index
    takes memory for blocks that it has, 80 to 115 bytes each. The default suits 600 GPU workers of 24,000 blocks each,
    and takes some 1.5 GB when it is full. When 7/8 of the blocks are in the index, it drops those that were not used
    for longest. With fewer blocks than the workers cache, prefixes are found too short, and requests go to workers that
    compute them again; more take memory on the Scheduler's node.
    """
    stimulus_log: StimulusLogConfig | None = None
    """What the Scheduler is told and what it decides is written to files. Nothing is written if it is missing."""

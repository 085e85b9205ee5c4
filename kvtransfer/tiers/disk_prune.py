"""Remove the blocks of a disk tier that were not used for longest, until the rest fits. A program of its own.

A block is used when it is written or read, as far as the file system records it: with `relatime`, reads count to a day;
with `noatime`, only writes count. Only files named like a block of vLLM's file system tier are removed.
"""

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

KEPT_SHARE = 0.9
"""Share of the capacity that is left after a prune. More walks over the disk more often; less removes more blocks at
once.
"""

ABANDONED_S = 3600.0
"""Seconds after which an unfinished file counts as left behind by a process that died. Fewer may remove a file that is
being written; more keeps such files for longer.
"""

BLOCKS = "*/*_r*/???/??_g*/*.bin"
UNFINISHED = f"{BLOCKS}_*.tmp"


class Block(NamedTuple):
    used_at: float
    num_bytes: int
    path: Path


def surplus(blocks: list[Block], capacity_bytes: int) -> list[Block]:
    """The blocks to remove, the longest unused first. Empty if all fit."""
    excess = sum(block.num_bytes for block in blocks)
    if excess <= capacity_bytes:
        return []
    excess -= int(capacity_bytes * KEPT_SHARE)
    chosen = []
    for block in sorted(blocks):
        if excess <= 0:
            break
        chosen.append(block)
        excess -= block.num_bytes
    return chosen


def prune(folder: Path, capacity_bytes: int, now: float) -> None:
    for block in surplus(_found(folder, BLOCKS), capacity_bytes):
        block.path.unlink(missing_ok=True)
    for file in _found(folder, UNFINISHED):
        if file.used_at < now - ABANDONED_S:
            file.path.unlink(missing_ok=True)


def _found(folder: Path, pattern: str) -> list[Block]:
    blocks = []
    for path in folder.glob(pattern):
        with suppress(FileNotFoundError):  # another worker prunes the same disk
            stat = path.stat()
            blocks.append(Block(max(stat.st_atime, stat.st_mtime), stat.st_size, path))
    return blocks


if __name__ == "__main__":
    os.nice(19)
    prune(Path(sys.argv[1]), int(sys.argv[2]), time.time())

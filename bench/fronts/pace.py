"""The pace of engine steps: one number in a file that every running engine has mapped, so that one write changes it for
all of them at once.
"""

import mmap
import struct
from pathlib import Path

PACE_FILE_VARIABLE = "BATON_BENCH_PACE_FILE"
"""Names the file in the environment of every engine."""

_SECONDS = struct.Struct("=d")


def write_pace(path: Path, pace_s: float) -> None:
    """`pace_s`: what a step lasts at least; 0 for as fast as the engine goes."""
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.write(_SECONDS.pack(pace_s))


class Pace:
    """The reader's side. A read is a load from memory."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._memory = mmap.mmap(file.fileno(), _SECONDS.size, access=mmap.ACCESS_READ)

    def read_s(self) -> float:
        return float(_SECONDS.unpack_from(self._memory)[0])

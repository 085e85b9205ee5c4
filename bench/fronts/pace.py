"""The pace of engine steps: two numbers in a file that every running engine has mapped, so that one write changes them
for all of them at once.
"""

import mmap
import struct
from pathlib import Path

PACE_FILE_VARIABLE = "BATON_BENCH_PACE_FILE"
"""Names the file in the environment of every engine."""

_SECONDS = struct.Struct("=dd")


def write_pace(path: Path, pace_s: float, token_s: float = 0.0) -> None:
    """What a step lasts at least: `pace_s`, and `token_s` for each token that it computes; 0 for as fast as the engine
    goes.
    """
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.write(_SECONDS.pack(pace_s, token_s))


class Pace:
    """The reader's side. A read is a load from memory."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._memory = mmap.mmap(file.fileno(), _SECONDS.size, access=mmap.ACCESS_READ)

    def step_s(self, num_tokens: int) -> float:
        pace_s, token_s = _SECONDS.unpack_from(self._memory)
        return float(pace_s + token_s * num_tokens)

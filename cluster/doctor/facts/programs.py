"""Other programs that a check runs: each ends in time, or is killed."""

import os
import subprocess
from collections.abc import Mapping, Sequence

MOST_OUTPUT_CHARS = 200_000
"""Characters of a program's output that are looked at. More takes time; fewer may cut what is looked for."""


class ProgramFailed(Exception):
    """A program is not there, has failed, or has not ended in time."""


class ProgramTooSlow(ProgramFailed):
    """A program has not ended in time. It may only be slow."""


def output_of(command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None) -> str:
    """What a program prints. Raises ProgramFailed with the last line of its errors."""
    try:
        done = subprocess.run(
            command,
            env=None if environment is None else {**os.environ, **environment},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise ProgramTooSlow(f"{command[0]} has not ended after {timeout_s:g} s") from error
    except OSError as error:
        raise ProgramFailed(f"{command[0]} does not run: {error.strerror}") from error
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise ProgramFailed(last[0] if last else f"{command[0]} has ended with {done.returncode}")
    return done.stdout[:MOST_OUTPUT_CHARS]

"""The DRAM tiers' files in shared memory, which are freed when the engine ends, however it ends.

vLLM names a tier's file by the engine's id, so that the engine's processes find it, and removes it when the engine ends
in order. After a SIGKILL the file would hold the tier's memory until the machine restarts. So the name is removed once
the engine has started: all its processes have mapped the file, and the memory is freed with the last of them.

A start that is killed leaves the name behind, and the start of the next engine removes it. A lock tells such a name
from that of an engine that is being started: the kernel drops the lock with the process. A process id would not do,
because containers often share /dev/shm but not their process ids.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")

_PREFIX = "baton_tier_"


@contextmanager
def named_while_starting(engine_id: str, folder: Path = SHARED_MEMORY) -> Iterator[None]:
    """To be entered before an engine starts, and left when it has started."""
    _remove_abandoned(folder)
    unlocked = folder / f"{_PREFIX}{engine_id}.new"  # no other process looks at it before it is locked
    with unlocked.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        unlocked.rename(_lock_of(folder, engine_id))
        try:
            yield
        finally:
            _remove(folder, engine_id)


def _remove_abandoned(folder: Path) -> None:
    for lock in folder.glob(f"{_PREFIX}*.lock"):
        # FileNotFoundError: another process has just removed it. BlockingIOError: its engine is being started.
        with suppress(FileNotFoundError, BlockingIOError), lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(folder, lock.stem.removeprefix(_PREFIX))


def _remove(folder: Path, engine_id: str) -> None:
    for file in folder.glob(f"vllm_offload_{engine_id}*.mmap"):  # vLLM adds the rank of a data-parallel engine
        file.unlink(missing_ok=True)
    _lock_of(folder, engine_id).unlink(missing_ok=True)


def _lock_of(folder: Path, engine_id: str) -> Path:
    return folder / f"{_PREFIX}{engine_id}.lock"

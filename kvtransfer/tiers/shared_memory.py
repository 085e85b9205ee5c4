"""The DRAM tiers' files in shared memory: they go with the engine, however it ends.

vLLM names a tier's file by the engine's id, so that the engine's processes find it, and removes it when the engine ends
in order; after a SIGKILL it would hold the tier's memory until the machine restarts. Once the engine has started, all
its processes have mapped the file and nobody needs its name, so the name is removed: the memory goes with the last of
them. A start that is killed leaves the name behind; whoever starts the next engine removes it. That nobody starts an
engine by a name is known by a lock, which the kernel drops with its holder. A lock, not a process id: containers often
share /dev/shm but not their process ids.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")

_PREFIX = "baton_tier_"


@contextmanager
def named_while_starting(engine_id: str, folder: Path = SHARED_MEMORY) -> Iterator[None]:
    """Around the start of an engine."""
    _remove_abandoned(folder)
    unlocked = folder / f"{_PREFIX}{engine_id}.new"  # not looked at by others before it is locked
    with unlocked.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        unlocked.rename(_lock_of(folder, engine_id))
        try:
            yield
        finally:
            _remove(folder, engine_id)


def _remove_abandoned(folder: Path) -> None:
    for lock in folder.glob(f"{_PREFIX}*.lock"):
        # FileNotFoundError: somebody else has just removed it. BlockingIOError: its engine is being started.
        with suppress(FileNotFoundError, BlockingIOError), lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(folder, lock.stem.removeprefix(_PREFIX))


def _remove(folder: Path, engine_id: str) -> None:
    for file in folder.glob(f"vllm_offload_{engine_id}*.mmap"):  # vLLM adds the rank of a data-parallel engine
        file.unlink(missing_ok=True)
    _lock_of(folder, engine_id).unlink(missing_ok=True)


def _lock_of(folder: Path, engine_id: str) -> Path:
    return folder / f"{_PREFIX}{engine_id}.lock"

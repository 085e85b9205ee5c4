"""The DRAM tiers' files in shared memory: whose they are, and the removal of those whose owner is gone.

vLLM names a tier's file by the engine's id and removes it when the engine ends in order. After a SIGKILL the file would
hold the tier's memory until the machine restarts. So the process that owns an engine keeps a lock beside the file,
which the kernel drops however the process ends, and whoever starts an engine first removes the files of unlocked
engines. A lock, not a process id: containers often share /dev/shm but not their process ids.
"""

import fcntl
from contextlib import suppress
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")


class TierMemory:
    """An engine's claim on its file. Held by the process that owns the engine, until `release`."""

    def __init__(self, engine_id: str, folder: Path = SHARED_MEMORY) -> None:
        _remove_unowned(folder)
        self._engine_id, self._folder = engine_id, folder
        unlocked = folder / f"baton_tier_{engine_id}.new"  # not looked at by others before it is locked
        self._lock = unlocked.open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unlocked.rename(_lock_of(folder, engine_id))

    def release(self) -> None:
        """Remove the file, if the engine has not; the engine must have ended."""
        _remove(self._folder, self._engine_id)
        self._lock.close()


def _remove_unowned(folder: Path) -> None:
    for lock in folder.glob("baton_tier_*.lock"):
        # FileNotFoundError: somebody else has just removed it. BlockingIOError: its owner lives.
        with suppress(FileNotFoundError, BlockingIOError), lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(folder, lock.stem.removeprefix("baton_tier_"))


def _remove(folder: Path, engine_id: str) -> None:
    for file in folder.glob(f"vllm_offload_{engine_id}*.mmap"):  # vLLM adds the rank of a data-parallel engine
        file.unlink(missing_ok=True)
    _lock_of(folder, engine_id).unlink(missing_ok=True)


def _lock_of(folder: Path, engine_id: str) -> Path:
    return folder / f"baton_tier_{engine_id}.lock"

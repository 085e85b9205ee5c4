"""State that one machine keeps for itself: no other machine, and no other container, may write it as well.

A server of our own knows its users by their process ids. A process of another container, or of another machine with
the same volume, sees none of them, and would start a second server on the same files.
"""

import fcntl
import os
import platform
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PROCESSES = Path("/proc/self/ns/pid")


class InUseElsewhere(RuntimeError):
    """Processes that this one cannot see use the same state."""


def own_home() -> str:
    """The same for all processes that see each other's process ids, and no others."""
    home = platform.node()
    with suppress(OSError):  # it is not Linux
        home = f"{_BOOT.read_text()} {os.readlink(_PROCESSES)}"
    return sha256(home.encode()).hexdigest()[:16]


class FolderUse:
    """That this process uses a folder, for as long as it lives or until `end`: a lock, which the kernel takes from a
    process that is killed.
    """

    def __init__(self, folder: Path, home: str | None = None) -> None:
        """`home`: as `own_home` has it."""
        self._users = folder.with_name(folder.name + ".users")
        self._home = home or own_home()
        self._held: int | None = None

    def begin(self) -> None:
        """Raises InUseElsewhere, or OSError."""
        if self._held is None:
            self._users.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._held = _shared(self._users / self._home)
        for other in self._users.iterdir():
            if other.name != self._home and not _removed_if_unused(other):
                self.end()
                raise InUseElsewhere(
                    f"processes of another container or machine use what is beside {self._users}: give each its own "
                    "state.data_dir, or all of them one database by state.database_url"
                )

    def end(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            os.close(held)


def _shared(file: Path) -> int:
    """The file, locked together with all others of this home."""
    while True:
        held = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(held, fcntl.LOCK_SH)
        with suppress(FileNotFoundError):
            if os.stat(file).st_ino == os.fstat(held).st_ino:
                return held
        os.close(held)  # it was removed meanwhile


def _removed_if_unused(file: Path) -> bool:
    with suppress(FileNotFoundError):
        held = os.open(file, os.O_RDWR)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.unlink()
        except BlockingIOError:
            return False
        finally:
            os.close(held)
    return True


def claim_for_node(
    own: str, keep_first: Callable[[str], str], replace: Callable[[str], None], is_alive: Callable[[str], bool]
) -> str | None:
    """Have the node `own` be the one that keeps the state of the application. Returns the node that kept it before,
    which is gone, if there is one.

    `keep_first` keeps its argument if nothing is kept yet, and returns what is kept; `is_alive` is told a node's id.
    Raises InUseElsewhere where a node that is alive keeps it.
    """
    kept = keep_first(own)
    if kept == own:
        return None
    if is_alive(kept):
        raise InUseElsewhere(
            f"state.database_url is not set, so node {kept} keeps conversations in a PostgreSQL of its own, and node "
            f"{own} would keep others: set state.database_url (BATON_DATABASE_URL) to one database for all ingress "
            "replicas, or keep them on one node"
        )
    replace(own)
    return kept

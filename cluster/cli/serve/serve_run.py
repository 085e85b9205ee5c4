"""A process of `serve run`, and the Ray node that it starts if it has no address of one.

Ray does not restart a raylet or a GCS that has ended. Without them, Serve replaces nothing that dies, and the replicas
end, too: at once if the raylet ended in order, and after a minute without the GCS. If the raylet was killed, they end
only with `serve run`, which does not notice the loss.
"""

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import psutil

ESSENTIAL = frozenset({"raylet", "gcs_server"})
"""Names of the processes of a Ray node that Ray does not restart, and without which nothing else is restarted."""
STOP_TIMEOUT_S = 3.0
"""Time that Serve has to stop by itself, and then that killed processes have to end, in seconds. After the first, the
processes are killed; after the second, they are left alone. Longer makes Ctrl-C slower; shorter breaks more streams.
"""


class ServeRun:
    """One process of `serve run` and what it starts."""

    def __init__(self, command: list[str], folder: Path, environment: Mapping[str, str], log: BinaryIO) -> None:
        """Start the process in a new session. Ctrl-C in the terminal does not reach it, and its descendants can be told
        from all other processes, except for servers that make their own sessions.
        """
        self._process = psutil.Popen(
            command,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._essential: dict[psutil.Process, str] = {}

    def find_node(self) -> None:
        """Find the processes of the Ray node that have been started so far. There are none if the node does not belong
        to this process.
        """
        for child in _children(self._process):
            if child not in self._essential and (name := _name(child)) in ESSENTIAL:
                self._essential[child] = name

    def ended(self) -> str | None:
        """The name of an essential process that has ended. None if all of them run."""
        if self._process.poll() is not None:
            return "`serve run`"
        return next((f"Ray's {name}" for process, name in self._essential.items() if not _runs(process)), None)

    def stop(self) -> None:
        """Stop the process and everything that it has started. What does not end in time is killed, orphans
        included.
        """
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        psutil.wait_procs([self._process], timeout=STOP_TIMEOUT_S)
        left = self._session()
        for process in left:
            _kill(process)
        psutil.wait_procs(left, timeout=STOP_TIMEOUT_S)

    def _session(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if _session_of(process) == self._process.pid]


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children())
    except psutil.NoSuchProcess:
        return []


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.NoSuchProcess:
        return ""


def _runs(process: psutil.Process) -> bool:
    """Whether a process runs. A process that has ended is a zombie until its parent waits for it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _session_of(process: psutil.Process) -> int | None:
    try:
        return os.getsid(process.pid)
    except (ProcessLookupError, PermissionError):
        return None


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return

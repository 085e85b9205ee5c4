"""A process of `serve run`, and the Ray node that it starts where it is not given the address of one.

Ray starts neither another raylet nor another GCS in the place of one that has ended. Without them Serve replaces
nothing that dies, and the replicas end too: at once where the raylet ended in order, after a minute without the GCS,
and only together with `serve run` where the raylet was killed, which `serve run` does not notice.
"""

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import psutil

ESSENTIAL = frozenset({"raylet", "gcs_server"})
"""Names of the processes of a Ray node that nobody replaces, and without which nothing else is replaced."""
STOP_TIMEOUT_S = 3.0
"""What Serve gets to stop by itself, and then what was killed to end. Longer makes Ctrl-C slower, shorter leaves fewer
streams their end.
"""


class ServeRun:
    def __init__(self, command: list[str], folder: Path, environment: Mapping[str, str], log: BinaryIO) -> None:
        """Starts it, in a session of its own: Ctrl-C in the terminal does not reach it, and whatever it starts can be
        told from all other processes, except servers that make themselves sessions of their own.
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
        """Know the processes of the Ray node, as far as they have been started; there are none where the node is not
        this process's own.
        """
        for child in _children(self._process):
            if child not in self._essential and (name := _name(child)) in ESSENTIAL:
                self._essential[child] = name

    def ended(self) -> str | None:
        """What has ended of that without which the service does not go on for long; None while nothing has."""
        if self._process.poll() is not None:
            return "`serve run`"
        return next((f"Ray's {name}" for process, name in self._essential.items() if not _runs(process)), None)

    def stop(self) -> None:
        """End it and all that it has started. What does not end by itself in time is killed, orphans too."""
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
    """A process that has ended is a zombie until its parent asks for it."""
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

"""The processes that the benchmark starts itself, and the pipe to those that put a load on a system."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from bench.fronts.load import Load, Trace

LOG_TAIL_LINES = 30
START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 20.0
CALL_TIMEOUT_S = 300.0
"""Longer than any load takes; a system that hangs must not hang the benchmark."""


class FailedStart(Exception):
    """A process ended, or took too long, before it was ready."""


class Child:
    """One process with its log file."""

    def __init__(
        self, argv: list[str], environment: dict[str, str], log: Path, *, cwd: Path, descriptors: tuple[int, ...] = ()
    ) -> None:
        self._argv, self._log = argv, log
        with log.open("wb") as output:
            # A session of its own: Ctrl-C reaches the benchmark alone, which then stops the others in order.
            self._process = subprocess.Popen(
                argv,
                cwd=cwd,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=descriptors,
                start_new_session=True,
            )
        self._deadline = time.monotonic() + START_TIMEOUT_S

    def require_starting(self) -> None:
        """Raises FailedStart, with the end of the log, if it has ended or should be ready by now."""
        if self._process.poll() is None and time.monotonic() < self._deadline:
            return
        why = "took too long to start" if self._process.returncode is None else f"ended ({self._process.returncode})"
        tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])
        raise FailedStart(f"{' '.join(self._argv[:4])} ... {why}; the end of {self._log}:\n{tail}")

    def interrupt(self) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)

    def wait(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_TIMEOUT_S)


class Driver(Child):
    """A process of ours that puts a load on a system: `load.py` has its side of the pipe."""

    def __init__(self, module: str, arguments: list[str], environment: dict[str, str], log: Path, *, cwd: Path) -> None:
        self._connection, theirs = Pipe()
        with theirs:
            argv = [sys.executable, "-m", module, str(theirs.fileno()), *arguments]
            super().__init__(argv, environment, log, cwd=cwd, descriptors=(theirs.fileno(),))

    def is_ready(self) -> bool:
        """Whether it has said so; to be asked once more only while it has not."""
        return self._connection.poll() and self._connection.recv() is None

    def interrupt(self) -> None:
        self._connection.close()  # what a driver waits for is the pipe
        super().interrupt()

    def prepare(self, load: Load) -> None:
        self._call("prepare", load)

    def run(self) -> float:
        """Seconds that the prepared load took."""
        return float(self._call("run"))

    def collect(self) -> list[Trace]:
        traces: list[Trace] = self._call("collect")
        return traces

    def _call(self, name: str, *arguments: Any) -> Any:
        self._connection.send((name, arguments))
        if not self._connection.poll(CALL_TIMEOUT_S):
            raise RuntimeError(f"no answer to {name} after {CALL_TIMEOUT_S:.0f} s")
        answer = self._connection.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

"""The guard of the shared service, as tests let it fail."""

import json
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

import psutil

from cluster.repository import REPO_ROOT
from tests.real_cluster.guarded import guard_proxy
from tests.real_cluster.service import wait_for

STARTED_WITHIN_S = 30.0


class GuardOutage(StrEnum):
    KILLED = "is killed"
    HANGS = "hangs"
    NONSENSE = "answers nonsense"


class GuardProcess:
    """It listens on a port, for a service at that URL, and keeps its files in a folder."""

    def __init__(self, port: int, service: str, folder: Path) -> None:
        self._port = port
        self._command = [sys.executable, "-m", guard_proxy.__name__, str(port), service, str(folder)]
        self._judged = folder / guard_proxy.JUDGED
        self._nonsense = folder / guard_proxy.NONSENSE
        self._log = folder / "guard.log"
        self._process = self._start()

    def judged(self) -> set[str]:
        """The texts that it has judged, as it was asked about them."""
        lines = self._judged.read_text().splitlines() if self._judged.exists() else []
        return {json.loads(line) for line in lines}

    @contextmanager
    def failing(self, outage: GuardOutage) -> Iterator[None]:
        match outage:
            case GuardOutage.KILLED:
                self.stop()
            case GuardOutage.HANGS:
                self._process.suspend()
            case GuardOutage.NONSENSE:
                self._nonsense.touch()
        try:
            yield
        finally:
            match outage:
                case GuardOutage.KILLED:
                    self._process = self._start()
                case GuardOutage.HANGS:
                    self._process.resume()
                case GuardOutage.NONSENSE:
                    self._nonsense.unlink()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def _start(self) -> psutil.Popen:
        with self._log.open("ab") as log:
            process = psutil.Popen(self._command, cwd=REPO_ROOT, stdout=log, stderr=log)
        wait_for(self._listens, STARTED_WITHIN_S)
        return process

    def _listens(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self._port)) == 0

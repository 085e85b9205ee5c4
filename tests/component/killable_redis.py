"""A real Redis server for tests, which a test can kill, suspend and start again."""

import signal
from pathlib import Path

import psutil

from cluster.services.redis import LocalRedis


class KillableRedis:
    def __init__(self, folder: Path) -> None:
        self._server = LocalRedis(folder)
        self._folder = folder
        self.url = self._server.start()

    def start(self) -> None:
        """Once more: it has forgotten everything."""
        self._server.start()

    def kill(self) -> None:
        process = self._process()
        process.kill()
        process.wait(30)

    def hold_up(self) -> None:
        """Redis takes commands and does not answer."""
        self._process().send_signal(signal.SIGSTOP)

    def let_go_on(self) -> None:
        self._process().send_signal(signal.SIGCONT)

    def close(self) -> None:
        if self._server.is_running:
            self.let_go_on()
        self._server.stop()

    def _process(self) -> psutil.Process:
        return psutil.Process(int((self._folder / "redis.pid").read_text()))

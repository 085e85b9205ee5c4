"""A real PostgreSQL server for tests, which a test can kill and start again."""

from pathlib import Path

import psutil

from cluster.services.postgres import LocalPostgres


class KillablePostgres:
    def __init__(self, folder: Path) -> None:
        self._server = LocalPostgres(folder)
        self._folder = folder
        self.url = self._server.start()

    def down(self) -> None:
        process = psutil.Process(int((self._folder / "postmaster.pid").read_text().splitlines()[0]))
        others = process.children()
        process.kill()
        psutil.wait_procs([process, *others], 30)

    def up(self) -> None:
        if not self._server.is_running:
            self._server.start()

    def close(self) -> None:
        self._server.stop()

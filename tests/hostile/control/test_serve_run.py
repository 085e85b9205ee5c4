"""What `baton serve` does when the Ray node that it has started ends: with a stand-in for `serve` that starts processes
of the same names, answers as the ingress does, and leaves an orphan, as a killed raylet does.
"""

import queue
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bench.fronts.free_ports import free_port
from cluster.cli.serve.start_log import LOG_FILE, private
from cluster.repository import REPO_ROOT
from tests.expected import present
from tests.real_cluster.service import wait_for

WITHIN_S = 30.0

SERVE = """
import ctypes, http.server, os, signal, sys
from pathlib import Path

folder, port = Path(sys.argv[1]), int(sys.argv[2])
starts = folder / "starts"
starts.write_text(starts.read_text() + "." if starts.exists() else ".")
if len(starts.read_text()) > 1 and (folder / "fails").exists():
    sys.exit("ValueError: it does not start again")

def child(name):
    if pid := os.fork():
        (folder / name).write_text(str(pid))
        return
    ctypes.CDLL(None).prctl(15, name.encode())
    while True:
        signal.pause()

child("raylet")
child("gcs_server")
if not os.fork():
    child("orphan")
    os._exit(0)
os.wait()

class Ingress(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"ready": true, "prefill_workers": 1, "decode_workers": 1, "connected_pairs": 1}')

http.server.HTTPServer(("127.0.0.1", port), Ingress).serve_forever()
"""

BATON = """
import sys
from pathlib import Path
from cluster.cli.serve.running_service import RunningService

folder, port = Path(sys.argv[1]), int(sys.argv[2])
args = {"model": "conf/models/baton-demo", "ingress": {"port": port}}
args["state"] = {"database_url": "postgresql://elsewhere/baton", "redis_url": "redis://elsewhere"}
config = {"applications": [{"args": args}]}
serve = [sys.executable, "-c", sys.argv[3], str(folder), str(port)]
sys.exit(RunningService(folder / "config", config, serve, folder).run())
"""


class Baton:
    """`baton serve` with the stand-in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-c", BATON, str(folder), str(free_port()), SERVE],
            cwd=REPO_ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def wait_for_line(self, with_words: str) -> None:
        said: list[str] = []
        while not said or with_words not in said[-1]:
            try:
                said.append(self._lines.get(timeout=WITHIN_S))
            except queue.Empty:
                pytest.fail(f"{with_words!r} was awaited, it said: {said}")

    def of(self, name: str) -> psutil.Process:
        return psutil.Process(int((self.folder / name).read_text()))

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(WITHIN_S)
        finally:
            self.process.kill()
            self._reading.join(WITHIN_S)
            present(self.process.stdout).close()

    @property
    def num_starts(self) -> int:
        return len((self.folder / "starts").read_text())

    def _read(self) -> None:
        for line in present(self.process.stdout):
            self._lines.put(line)


@pytest.fixture
def baton(tmp_path: Path) -> Iterator[Baton]:
    running = Baton(tmp_path)
    try:
        running.wait_for_line("Baton is ready")
        yield running
    finally:
        running.end()
    assert not any(_runs(running, name) for name in ("raylet", "gcs_server", "orphan"))


@pytest.mark.parametrize("essential", ["raylet", "gcs_server"])
def test_service_starts_anew_when_its_ray_node_ends(baton: Baton, essential: str) -> None:
    orphan = baton.of("orphan")
    baton.of(essential).kill()
    baton.wait_for_line(f"Ray's {essential} has ended")
    baton.wait_for_line("Baton is ready")
    assert baton.num_starts == 2
    wait_for(lambda: not _is_alive(orphan), WITHIN_S)


def test_log_of_the_run_before_is_kept(tmp_path: Path) -> None:
    """What ended it may be in there."""
    log = private(tmp_path / LOG_FILE)
    log.write_text("why it ended")
    baton = Baton(tmp_path)
    baton.wait_for_line("Baton is ready")
    baton.end()
    kept = log.with_name("serve.log.1")
    assert kept.read_text() == "why it ended"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert "why it ended" not in log.read_text()


def test_service_starts_anew_when_serve_run_ends(baton: Baton) -> None:
    baton.of("raylet").parent().kill()
    baton.wait_for_line("`serve run` has ended")
    baton.wait_for_line("Baton is ready")
    assert baton.num_starts == 2


def test_service_that_does_not_start_again_ends_with_the_reason(baton: Baton) -> None:
    (baton.folder / "fails").touch()
    baton.of("raylet").kill()
    baton.wait_for_line("the service did not start")
    baton.wait_for_line("ValueError: it does not start again")
    assert baton.process.wait(WITHIN_S) == 1


def test_ctrl_c_stops_orphans_too(baton: Baton) -> None:
    baton.process.send_signal(signal.SIGINT)
    assert baton.process.wait(WITHIN_S) == 0
    assert not _runs(baton, "orphan")


def _runs(baton: Baton, name: str) -> bool:
    try:
        return _is_alive(baton.of(name))
    except psutil.NoSuchProcess:
        return False


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

"""The service that is measured, started here or found, and what CPU time its processes use."""

import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import psutil
import yaml

from bench.fronts import census
from bench.fronts.child import Child
from bench.fronts.free_ports import free_port
from bench.fronts.setting import HOST, REPO_ROOT
from bench.fronts.systems import get, wait
from cluster.config.state import StateConfig
from cluster.services.postgres import POSTGRES_FOLDER, LocalPostgres

INGRESS = "ray::ServeReplica:baton:Ingress"
"""Its process's title begins so."""
SYSTEM = "baton"
FOLDER = REPO_ROOT / ".baton" / "bench"


@dataclass
class Used:
    """CPU seconds in a time; None where it does not run on this machine, or it is not known which it is."""

    wall_s: float = 0.0
    ingress_s: float | None = None
    postgres_s: float | None = None
    strangers_share: float | None = None
    """Of a core, that processes took which are neither the service nor this one. None: it was not started here."""


class Service:
    def __init__(self, url: str, data: Path, *, is_ours: bool) -> None:
        """`data`: the folder of its own PostgreSQL. `is_ours`: it was started here."""
        self.url = url
        self._is_ours = is_ours
        self._ingress = [p for p in psutil.process_iter() if _is_ingress(p, urlsplit(url).port or 80)]
        servers = [p for p in psutil.process_iter() if _is_postgres_of(p, data)]
        self._postgres: psutil.Process | None = servers[0] if servers else None

    def client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            base_url=f"{self.url}/v1",
            api_key="bench",
            max_retries=0,  # what fails shall show
            timeout=120,
            http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
        )

    @contextmanager
    def watched(self) -> Iterator[Used]:
        """What is used until the end of the block, where it is filled in."""
        used, began_at, before, busy_s = Used(), time.monotonic(), self._reading(), census.machine_busy_s()
        yield used
        after = self._reading()
        used.wall_s = time.monotonic() - began_at
        if self._ingress:
            used.ingress_s = after.ingress_s - before.ingress_s
        if before.postgres_s is not None and after.postgres_s is not None:
            used.postgres_s = after.postgres_s - before.postgres_s
        if self._is_ours:
            ours_s = sum(after.all_s.values()) - sum(before.all_s.get(pid, 0.0) for pid in after.all_s)
            used.strangers_share = max(0.0, (census.machine_busy_s() - busy_s - ours_s) / used.wall_s)

    def _reading(self) -> "_Reading":
        all_s = {process.pid: seconds for process, seconds in census.read().items()}
        all_s[os.getpid()] = time.process_time()
        ingress_s = sum(census.cpu_s(process.pid) for process in self._ingress)
        if self._postgres is None:
            return _Reading(ingress_s, None, all_s)
        times = self._postgres.cpu_times()
        ended_s = times.children_user + times.children_system
        living_s = {}
        for process in (self._postgres, *self._postgres.children()):
            with suppress(OSError):
                living_s[process.pid] = census.cpu_s(process.pid)
        all_s |= living_s
        return _Reading(ingress_s, ended_s + sum(living_s.values()), all_s)


@dataclass(frozen=True)
class _Reading:
    """CPU seconds since they started."""

    ingress_s: float
    postgres_s: float | None
    """CPU seconds of PostgreSQL, including its processes that have ended."""
    all_s: dict[int, float]
    """CPU seconds of the service and of this process, by process id."""


@contextmanager
def started(conf: dict[str, Any]) -> Iterator[Service]:
    """`baton serve` with this Serve config, titles off, no API keys, and an empty PostgreSQL. Raises FailedStart."""
    data, port = FOLDER / "state", free_port()
    LocalPostgres(data / POSTGRES_FOLDER).stop()  # of a run that was killed
    shutil.rmtree(data, ignore_errors=True)
    config_file = FOLDER / "chat-state.yaml"
    (FOLDER / "logs").mkdir(parents=True, exist_ok=True)
    config_file.write_text(yaml.safe_dump(_with_state(conf, {"data_dir": str(data), "titles": False})))
    ports = ["--port", str(port), "--admin-port", str(free_port())]
    child = Child(
        [str(Path(sys.executable).with_name("baton")), "serve", str(config_file), *ports],
        {**census.marks(SYSTEM, "others"), "PYTHONPATH": str(REPO_ROOT)},
        FOLDER / "logs" / "chat-state.log",
        cwd=FOLDER,
    )
    try:
        for path in ("/readyz", "/v1/conversations"):  # PostgreSQL comes later than the engines
            wait(child, partial(_answers, port, path))
        yield Service(f"http://{HOST}:{port}", data, is_ours=True)
    finally:
        child.interrupt()
        child.wait()
        census.kill(SYSTEM)
        LocalPostgres(data / POSTGRES_FOLDER).stop()


def found(url: str) -> Service:
    """A service that runs already."""
    return Service(url.rstrip("/"), REPO_ROOT / StateConfig().data_dir, is_ours=False)


def _answers(port: int, path: str) -> bool:
    return get(port, path) is not None


def _with_state(conf: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    application = conf["applications"][0]
    own = application["args"]
    args = {**own, "identity": {"required": False}, "state": {**own.get("state", {}), **state}}
    return {**conf, "applications": [{**application, "args": args}]}


def _is_ingress(process: psutil.Process, port: int) -> bool:
    """Whether it is a replica that listens there."""
    try:
        is_named = " ".join(process.cmdline()).startswith(INGRESS)
        return is_named and any(
            connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
            for connection in process.net_connections(kind="tcp")
        )
    except psutil.Error:
        return False


def _is_postgres_of(process: psutil.Process, data: Path) -> bool:
    try:
        return process.name() == "postgres" and any(str(data) in argument for argument in process.cmdline())
    except psutil.Error:
        return False

"""A running Baton for tests: started by the user's command, on real engines, and read through its own HTTP surface."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import httpx
import psutil
import yaml
from prometheus_client.parser import text_string_to_metric_families

from api.identity.admin.admin_key import known_admin_key
from bench.fronts.free_ports import free_port
from cluster import compiled
from cluster.config.environment import ADMIN_KEY_VARIABLE
from cluster.repository import REPO_ROOT
from cluster.services.redis import REDIS_FOLDER
from tests.conformance.watch import watched

START_TIMEOUT_S = 240.0
RECOVERED_WITHIN_S = 120.0
DASHBOARD_PORTS = set(range(8265, 8365))
"""Ray takes the first free one."""
CONTROLLER_PROCESS = "ray::ServeController"
INGRESS_PROCESS, SCHEDULER_PROCESS, PREFILL_PROCESS, DECODE_PROCESS = (
    f"ray::ServeReplica:baton:{deployment}" for deployment in ("Ingress", "Scheduler", "PrefillWorker", "DecodeWorker")
)


IN_USE = {"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"}
"""Metrics of each engine that are 0 when nothing of a request is left in it."""
RESERVATION_S = 5.0
CHANGES: dict[str, Any] = {
    # A place that a killed ingress had taken is soon free
    "limits": {"reservation_s": RESERVATION_S},
    "metering": {"prices": "conf/prices.yaml"},
    "ingress": {
        "allow_path_header": True,
        "verified_share": 1.0,
        "keep_receipts": 10,
        # A figure is read before and after what is tested
        "metrics_max_age_s": 0,
        # A client that reads nothing shall lose its request before the demo model's longest answer ends by itself
        "max_unread_tokens": 500,
        # What it costs the others is tested on engines (tests/real_cluster/hostile/test_grammars.py)
        "structured_output": {"allow_grammars": True},
    },
    # Two engines start on two cores
    "slo": {"standard": {"outage_wait_s": 150}},
}
"""What the cluster tests cannot do without."""


class Service:
    """`baton serve` with conf/local.yaml and a few changes to its `args`."""

    host = "127.0.0.1"

    def __init__(self, folder: Path, changes: dict[str, Any], application: dict[str, Any] | None = None) -> None:
        """`application`: keys of the application beside `args`."""
        config = yaml.safe_load((REPO_ROOT / "conf/local.yaml").read_text())
        self.data = folder / "state"
        self._data = str(self.data)
        own = {"state": {"data_dir": self._data}, "identity": {"required": False}, "quality_probe": {"enabled": False}}
        changes = merged(own, changes)
        args = config["applications"][0]["args"] = merged(config["applications"][0]["args"], changes)
        config["applications"][0] |= application or {}
        self.config_file = folder / "serve.yaml"
        self.config_file.write_text(yaml.safe_dump(config))
        self._config = config
        num_cells = len(args.get("cells", {}).get("names", ["main"]))
        self.num_engines = num_cells * (args["prefill"]["replicas"] + args["decode"]["replicas"])
        self.port = free_port()
        self.url = f"http://{self.host}:{self.port}"
        self.admin_port = free_port()
        self.admin_url = f"http://{self.host}:{self.admin_port}"
        self.log = folder / "baton.log"
        command = [
            str(Path(sys.executable).with_name("baton")),
            "serve",
            str(self.config_file),
            "--port",
            str(self.port),
            "--admin-port",
            str(self.admin_port),
        ]
        environment = os.environ | {compiled.SWITCH: "0"}  # what its users run
        with self.log.open("wb") as log:
            self._process = self._start(command, environment, log)
        self._http = watched(httpx.Client(base_url=self.url, timeout=30))
        self._admin_http = watched(httpx.Client(base_url=self.admin_url, timeout=30))

    def wait_until_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        wait_for(lambda: "Baton is ready" in self.log.read_text() or self._process.poll() is not None, timeout_s)
        assert self._process.poll() is None, f"the service ended while starting:\n{self.log.read_text()}"
        # Workers are ready before Serve's controller has told the ingress of their replicas
        wait_for(self._has_all_metrics, RECOVERED_WITHIN_S)

    def wait_until_whole(self) -> None:
        """Everybody whom a test has killed is replaced, the database too."""
        wait_for(lambda: self._has_workers() and self.is_ready(), RECOVERED_WITHIN_S, interval_s=0.5)
        wait_for(lambda: self.get("/v1/conversations").is_success, RECOVERED_WITHIN_S)

    def stop(self) -> list[psutil.Process]:
        """Ctrl-C. Returns what is left of everything that it had started."""
        self._http.close()
        self._admin_http.close()
        family = self._family()
        self._process.send_signal(signal.SIGINT)
        self._process.wait(timeout=30)
        _, left = psutil.wait_procs(family, timeout=5)
        return left + [p for p in psutil.process_iter() if _serves(p, self._data)]

    def update(self, changes: dict[str, Any]) -> None:
        """Have Serve roll changed `args` out, as `serve deploy` does."""
        application = self._config["applications"][0]
        application["args"] = merged(
            application["args"], {**changes, "ingress": {"port": self.port}, "admin": {"port": self.admin_port}}
        )
        self._of_serve("PUT", json=self._config)

    def serve_says(self) -> dict[tuple[str, str], str]:
        """What Serve's controller knows: the state of each replica, by its deployment and its id."""
        deployments = self._of_serve("GET").json()["applications"]["baton"]["deployments"]
        return {
            (name, replica["replica_id"]): replica["state"]
            for name, deployment in deployments.items()
            for replica in deployment["replicas"]
        }

    def _start(self, command: list[str], environment: dict[str, str], log: IO[bytes]) -> psutil.Popen:
        return psutil.Popen(command, cwd=REPO_ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)

    def _family(self) -> list[psutil.Process]:
        """All that it has started and that has made no session of its own."""
        return self._process.children(recursive=True)

    def _of_serve(self, method: str, **arguments: Any) -> httpx.Response:
        (dashboard,) = self.ray_processes("dashboard.py")
        (port,) = {
            c.laddr.port
            for c in dashboard.net_connections()
            if c.status == psutil.CONN_LISTEN and c.laddr.port < 10_000
        }
        token = (Path.home() / ".ray/auth_token").read_text().strip()
        return httpx.request(
            method,
            f"http://127.0.0.1:{port}/api/serve/applications/",
            headers={"Authorization": f"Bearer {token}"},
            timeout=30,
            **arguments,
        ).raise_for_status()

    def get(self, path: str) -> httpx.Response:
        return self._http.get(path)

    def post(self, path: str, body: object) -> httpx.Response:
        return self._http.post(path, json=body)

    def of_operators(self, path: str) -> httpx.Response:
        """What the admin port answers."""
        return self._admin_http.get(path, headers={"Authorization": f"Bearer {self.admin_key}"})

    @property
    def admin_key(self) -> str:
        """The key that the service has made at its start."""
        return known_admin_key(Path(self._data))

    def as_operator(self) -> dict[str, str]:
        """The environment of a command that asks the admin port."""
        return os.environ | {ADMIN_KEY_VARIABLE: self.admin_key}

    def process(self, name: str) -> psutil.Process:
        """The process of a deployment's (only) replica."""
        (replica,) = self.processes(name)
        return replica

    def processes(self, name: str) -> list[psutil.Process]:
        """The processes of a deployment's replicas."""
        return [p for p in self._family() if is_named(p, name)]

    def ray_processes(self, script: str) -> list[psutil.Process]:
        """Processes of Ray that run a script of that name."""
        return [p for p in self._family() if _runs(p, script)]

    def all_processes(self) -> list[psutil.Process]:
        """Also those that have made sessions of their own."""
        servers = [p for p in psutil.process_iter() if _serves(p, self._data)]
        started = [child for server in servers for child in server.children(recursive=True)]
        return list({self._process, *self._family(), *servers, *started})

    def postgres(self) -> list[psutil.Process]:
        """All processes of its PostgreSQL."""
        (server,) = [p for p in psutil.process_iter() if p.name() == "postgres" and _serves(p, self._data)]
        return [server, *server.children(recursive=True)]

    def redis(self, folder: str = REDIS_FOLDER) -> psutil.Process:
        """`folder`: of the server, inside the data folder."""
        own = f"{self._data}/{folder}/"
        (server,) = [p for p in psutil.process_iter() if p.name() == "redis-server" and _serves(p, own)]
        return server

    def _has_workers(self) -> bool:
        """Their processes at least: what is said of readiness may be a quarter of a second old."""
        return len(self.processes(PREFILL_PROCESS)) + len(self.processes(DECODE_PROCESS)) >= self.num_engines

    def is_ready(self) -> bool:
        """Answers, and can hand over."""
        try:
            return self.get("/readyz").is_success
        except httpx.TransportError:
            return False

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the samples of one metric that have these labels."""
        return sum(self.samples(name, **labels))

    def samples(self, name: str, **labels: str) -> list[float]:
        """The samples of one metric that have these labels."""
        families = text_string_to_metric_families(self.of_operators("/metrics").raise_for_status().text)
        samples = (sample for family in families for sample in family.samples if sample.name == name)
        return [sample.value for sample in samples if labels.items() <= sample.labels.items()]

    def prompt_tokens(self, pool: str) -> dict[str, int]:
        """Prompt tokens of a pool's engines so far, by where their KV came from."""
        return {
            source: int(self.metric("baton_prompt_tokens_total", pool=pool, source=source))
            for source in ("computed", "local", "pulled")
        }

    def is_idle(self) -> bool:
        """No engine runs, queues or holds anything."""
        values = self._in_use()
        return self._are_of_all(values) and not any(values)

    def _has_all_metrics(self) -> bool:
        return self._are_of_all(self._in_use())

    def _are_of_all(self, values: list[float]) -> bool:
        return len(values) == len(IN_USE) * self.num_engines

    def _in_use(self) -> list[float]:
        """What the engines run, queue and hold, as far as they say."""
        families = text_string_to_metric_families(self.of_operators("/metrics").raise_for_status().text)
        return [sample.value for family in families if family.name in IN_USE for sample in family.samples]


def wait_for(condition: Callable[[], object], timeout_s: float, interval_s: float = 0.1) -> float:
    """Poll until the condition holds; returns the seconds it took. Raises TimeoutError."""
    started_at = time.monotonic()
    while not condition():
        if time.monotonic() - started_at > timeout_s:
            raise TimeoutError(f"{condition} did not hold within {timeout_s} s")
        time.sleep(interval_s)  # noqa: TID251
    return time.monotonic() - started_at


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A config with changes, section by section."""
    nested = {key: merged(base.get(key, {}), value) for key, value in changes.items() if isinstance(value, dict)}
    return {**base, **changes, **nested}


def _runs(process: psutil.Process, script: str) -> bool:
    try:
        return any(Path(argument).name == script for argument in process.cmdline())
    except psutil.Error:
        return False


def _serves(process: psutil.Process, folder: str) -> bool:
    """PostgreSQL with its data in there, which is nobody's child."""
    try:
        return any(folder in argument for argument in process.cmdline())
    except psutil.Error:
        return False


def is_named(process: psutil.Process, name: str) -> bool:
    """While a replica answers a call, Ray adds a dot and the method to its process's name."""
    try:
        return " ".join(process.cmdline()).strip().partition(".")[0] == name
    except psutil.Error:
        return False

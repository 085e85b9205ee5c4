"""A service on a Ray cluster of two nodes, whose control plane can be struck: the head, with a GCS that keeps what it
knows on disk, has all deployments and one decode worker; the other node has the second decode worker and nothing else.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import psutil

from cluster.config.environment import SECRET_VARIABLE
from cluster.config.tenants.identity import OPEN_ACCESS
from cluster.repository import REPO_ROOT
from tests.drills.processes import DECODE, INGRESS, PREFILL, SCHEDULER, LiveProcesses
from tests.nodes.namespaces import Network, Node
from tests.real_cluster.service import CONTROLLER_PROCESS, Service, wait_for

NUM_REPLICAS = {INGRESS: 1, SCHEDULER: 1, PREFILL: 1, DECODE: 2}
RAYLET, GCS = "raylet", "gcs_server"
GCS_PORT = 6379
HEAD, OTHER = 2, 3
"""Numbers of the nodes."""
DECODE_PLACE = "decode_place"
"""A Ray resource of which each node has one: so that each has one decode worker."""
CHANGES: dict[str, Any] = {
    "ingress": {"host": "0.0.0.0", "cpus": 0.3, "allow_path_header": True, "verified_share": 1.0},
    "admin": {"host": "0.0.0.0"},
    "identity": {"open_access": OPEN_ACCESS},
    "prefill": {"cpus": 0.2},
    # Without CPUs: the other node has none, so that nothing but a decode worker finds room there
    "decode": {"replicas": 2, "cpus": 0, "resources": {DECODE_PLACE: 1}},
    # Three engines start at once on two cores
    "slo": {"standard": {"outage_wait_s": 150}},
}
AUTHENTICATED = {"RAY_AUTH_MODE": "token"}
"""`ray start --head` demands a token where the machine has one; `ray start --address` sends it where it is told to."""
RAY_STARTED_WITHIN_S = 60.0
ENDED_WITHIN_S = 10.0


class TwoNodes(Service):
    """`baton serve` on the head of a cluster that runs already."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ray_log = (folder / "ray.log").open("wb")
        self._ray("get-auth-token", "--generate")
        self.network = Network()
        self.head, self.other = Node(HEAD), Node(OTHER)
        self.host = self.head.address
        self._gcs_address = f"{self.head.address}:{GCS_PORT}"
        try:
            self._start_ray(self.head, "--head", f"--port={GCS_PORT}", "--include-dashboard=false", "--num-cpus=4")
            self.start_other()
            super().__init__(folder, CHANGES)
        except BaseException:
            self._switch_off()
            raise
        self.live = LiveProcesses(self)

    def start_other(self) -> None:
        """The raylet of the other node, and what belongs to it."""
        self._start_ray(self.other, f"--address={self._gcs_address}", "--num-cpus=0")

    def ray_process(self, node: Node, name: str) -> psutil.Process:
        (process,) = [p for p in node.processes() if _name(p) == name]
        return process

    def agents(self, node: Node) -> list[psutil.Process]:
        return [p for p in node.processes() if "Agent" in _name(p)]

    def controllers(self) -> list[psutil.Process]:
        return self.processes(CONTROLLER_PROCESS)

    def controller(self) -> psutil.Process:
        (process,) = self.controllers()
        return process

    def restart_gcs(self) -> None:
        """Start a killed GCS again with the same arguments, as an operator's supervisor would."""
        command, environment = self._gcs
        self.head.start(command, environment, self._ray_log)

    def kill_gcs(self) -> None:
        killed = self.ray_process(self.head, GCS)
        self._gcs = killed.cmdline(), killed.environ()
        killed.kill()
        wait_for(lambda: not killed.is_running() or killed.status() == psutil.STATUS_ZOMBIE, ENDED_WITHIN_S)

    def stop(self) -> list[psutil.Process]:
        """Both nodes are switched off. Returns what is left of them."""
        self._http.close()
        self._admin_http.close()
        processes = self._family()
        self._switch_off()
        return psutil.wait_procs(processes, timeout=ENDED_WITHIN_S)[1]

    def _switch_off(self) -> None:
        for node in (self.head, self.other):
            node.kill()
        self.network.close()
        self._ray_log.close()

    def _start(self, command: list[str], environment: dict[str, str], log: IO[bytes]) -> psutil.Popen:
        return self.head.start(command, {**environment, **AUTHENTICATED, "RAY_ADDRESS": self._gcs_address}, log)

    def _family(self) -> list[psutil.Process]:
        return [*self.head.processes(), *self.other.processes()]

    def _start_ray(self, node: Node, *arguments: str) -> None:
        environment = {
            **AUTHENTICATED,
            SECRET_VARIABLE: "",  # the tests' own, which a node that is started again must not bring
            "PYTHONPATH": str(REPO_ROOT),
            "RAY_gcs_storage": "rocksdb",
            "RAY_gcs_storage_path": str(self._folder / "gcs"),
            "RAY_worker_niceness": "0",
        }
        command = [
            *_ray_command("start", *arguments),
            f"--node-ip-address={node.address}",
            f'--resources={{"{DECODE_PLACE}": 1}}',
            "--object-store-memory=80000000",
            "--disable-usage-stats",
        ]
        code = node.start(command, environment, self._ray_log).wait(RAY_STARTED_WITHIN_S)
        assert code == 0, (self._folder / "ray.log").read_text()

    def _ray(self, *arguments: str) -> None:
        subprocess.run(_ray_command(*arguments), check=True, capture_output=True, env=os.environ)


def _ray_command(*arguments: str) -> list[str]:
    return [str(Path(sys.executable).with_name("ray")), *arguments]


def _name(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) if process.name().startswith("ray::") else process.name()
    except psutil.Error:
        return ""

"""A service that `ray up` and `serve deploy` have started on nodes of this machine, as its operator does it
(docs/clusters.md).
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
import yaml
from ray.autoscaler.tags import TAG_RAY_USER_NODE_TYPE

from api.identity.admin.admin_key import known_admin_key
from cluster.config.tenants.identity import OPEN_ACCESS
from cluster.repository import REPO_ROOT
from tests.certificates import Authority
from tests.conformance.watch import watched
from tests.nodes.cloud import Cloud
from tests.real_cluster.service import is_named, merged

HEAD, INGRESS, PREFILL, DECODE = "head", "ingress", "prefill", "decode"
"""Node types of conf/ray-up/local.yaml."""
DEPLOYMENTS = {PREFILL: "PrefillWorker", DECODE: "DecodeWorker"}
CONFIGS = REPO_ROOT / "conf/ray-up"
COMMAND_WITHIN_S = 120.0
CHANGES: dict[str, Any] = {
    "ingress": {"allow_path_header": True, "verified_share": 1.0, "metrics_max_age_s": 0},
    "identity": {"required": False, "open_access": OPEN_ACCESS},
    "quality_probe": {"enabled": False},  # the tests count the tokens of their own requests
    # Engines start at once on two cores
    "slo": {"standard": {"outage_wait_s": 150}},
}


class NodeAway(httpx.ConnectError):
    """No node of a type runs now, or more than one. Whoever waits for a service goes on waiting."""


class RayUp:
    port, admin_port = 8000, 8001

    def __init__(self, folder: Path, num_replicas: Mapping[str, int]) -> None:
        """`num_replicas` of the pools, each on a node of its own. There may be one node more of each pool."""
        self._folder = folder
        self._tls = Authority().issued(folder / "tls")
        (folder / "homes").mkdir()
        self.cloud = Cloud(folder / "homes", folder / "cloud.sock")
        try:
            self._config = self._cluster_config(num_replicas)
            self._run("ray", "get-auth-token", "--generate")
            self.up()
            self._http = watched(httpx.Client(timeout=30))
        except BaseException:
            self.cloud.close()
            raise
        self.num_replicas = dict(num_replicas)

    def up(self) -> None:
        """`ray up`. On a head that runs already, it starts Ray there if it does not run."""
        self._run("ray", "up", "--yes", "--no-config-cache", str(self._config))

    def deploy(self, changed: Mapping[str, Any] | None = None, resized: Mapping[str, int] | None = None) -> None:
        """`serve deploy`, with TLS between Baton's processes. `changed`: arguments of the application that others have
        in place of those of before. `resized`: workers of pools, given beside the arguments.
        """
        config = yaml.safe_load((CONFIGS / "local-serve.yaml").read_text())
        application = config["applications"][0]
        pools = {pool: {"replicas": number, "max_surge_percent": 50} for pool, number in self.num_replicas.items()}
        tls = msgspec.structs.asdict(self._tls)
        changes = {**CHANGES, **pools, "state": {"data_dir": str(self._folder / "state")}, "network": {"tls": tls}}
        application["args"] = merged(merged(application["args"], changes), dict(changed or {}))
        application["deployments"] = [
            {"name": DEPLOYMENTS[pool], "num_replicas": number} for pool, number in (resized or {}).items()
        ]
        file = self._folder / "serve.yaml"
        file.write_text(yaml.safe_dump(config))
        self._run("serve", "deploy", "--address", f"http://{self.address(HEAD)}:8265", str(file))

    def down(self) -> None:
        """`ray down`."""
        self._run("ray", "down", "--yes", str(self._config))

    def close(self) -> list[psutil.Process]:
        """Switch all nodes off. Returns what is left of them."""
        self._http.close()
        processes = self._processes()
        self.cloud.close()
        return psutil.wait_procs(processes, timeout=10)[1]

    @property
    def host(self) -> str:
        return self.address(INGRESS)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def get(self, path: str) -> httpx.Response:
        return self._http.get(self.url + path)

    def of_operators(self, path: str) -> httpx.Response:
        """What the admin port answers."""
        key = known_admin_key(self._folder / "state")
        return self._http.get(f"http://{self.host}:{self.admin_port}{path}", headers={"Authorization": f"Bearer {key}"})

    def post(self, path: str, body: object, headers: Mapping[str, str]) -> httpx.Response:
        return self._http.post(self.url + path, json=body, headers=headers)

    def is_ready(self) -> bool:
        try:
            return self.get("/readyz").is_success
        except httpx.TransportError:
            return False

    def names(self, node_type: str) -> list[str]:
        """Of the nodes of that type."""
        return self.cloud.names({TAG_RAY_USER_NODE_TYPE: node_type})

    def address(self, node_type: str) -> str:
        """Of the only node of that type. Raises NodeAway."""
        names = self.names(node_type)
        if len(names) != 1:
            raise NodeAway(f"{len(names)} nodes of type {node_type} run")
        try:
            return self.cloud.address(names[0])
        except KeyError as error:
            raise NodeAway(f"the node of type {node_type} has just gone") from error

    def processes(self, name: str) -> list[psutil.Process]:
        """Those of that name, on all nodes."""
        return [process for process in self._processes() if is_named(process, name)]

    def _processes(self) -> list[psutil.Process]:
        return [process for name in self.cloud.names({}) for process in self.cloud.node(name).processes()]

    def _cluster_config(self, num_replicas: Mapping[str, int]) -> Path:
        config = yaml.safe_load((CONFIGS / "local.yaml").read_text())
        config["provider"]["socket"] = str(self._folder / "cloud.sock")
        for pool, number in num_replicas.items():
            node_type = config["available_node_types"][pool]
            node_type["min_workers"], node_type["max_workers"] = number, number + 1  # with room for an update
        config["max_workers"] = sum(node_type["max_workers"] for node_type in config["available_node_types"].values())
        file = self._folder / "cluster.yaml"
        file.write_text(yaml.safe_dump(config))
        return file

    def _run(self, program: str, *arguments: str) -> None:
        ran = subprocess.run(
            [str(Path(sys.executable).with_name(program)), *arguments],
            cwd=REPO_ROOT,
            env={**os.environ, "PYTHONPATH": str(REPO_ROOT), "RAY_AUTH_MODE": "token"},
            capture_output=True,
            text=True,
            timeout=COMMAND_WITHIN_S,
        )
        assert ran.returncode == 0, f"{program} {arguments[0]}:\n{ran.stdout}\n{ran.stderr}"

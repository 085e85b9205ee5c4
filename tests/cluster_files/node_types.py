"""What the cluster files say: the node types of each, and what the application asks for."""

import copy
from pathlib import Path
from typing import Any

import yaml
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr
from ray.autoscaler._private.util import prepare_config
from ray.autoscaler.v2.instance_manager.config import AutoscalingConfig
from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
from ray.autoscaler.v2.utils import ResourceRequestUtil
from ray.core.generated.autoscaler_pb2 import ResourceRequest

from cluster.config.application import AppConfig, parse
from cluster.config.pools import PoolConfig

ROOT = Path(__file__).resolve().parents[2]
RAY_UP = ROOT / "conf/ray-up"
RAY_SERVICE = ROOT / "conf/kuberay/rayservice.yaml"
CLOUDS = ("aws", "gcp")
FILES = (*CLOUDS, "kuberay")
REQUIRED = (
    "BATON_DATABASE_URL",
    "BATON_REDIS_URL",
    "BATON_MASTER_KEY",
    "BATON_CLUSTER_SECRET",
    "BATON_ADMIN_KEY",
    "RAY_AUTH_TOKEN",
)
"""Variables of a node's environment that must have a value."""
SCHEDULER_CPUS = 0.1
"""CPUs of the Scheduler (cluster/app.py)."""


def ray_up(cloud: str) -> dict[str, Any]:
    """A cluster file as it is written."""
    return dict(yaml.safe_load((RAY_UP / f"{cloud}.yaml").read_text()))


def documents() -> list[dict[str, Any]]:
    """The Kubernetes objects of the RayService's file."""
    return list(yaml.safe_load_all(RAY_SERVICE.read_text()))


def ray_service() -> dict[str, Any]:
    return next(document for document in documents() if document["kind"] == "RayService")


def serve_config() -> dict[str, Any]:
    return dict(yaml.safe_load((RAY_UP / "serve.yaml").read_text()))


def application(file: str = "aws") -> AppConfig:
    """The application that a cluster file's nodes are for."""
    config = yaml.safe_load(ray_service()["spec"]["serveConfigV2"]) if file == "kuberay" else serve_config()
    (deployed,) = config["applications"]
    return parse(deployed["args"])


def autoscaling_config(file: str) -> dict[str, Any]:
    """The configuration that Ray's autoscaler has on the head."""
    if file in CLOUDS:
        return dict(prepare_config(copy.deepcopy(ray_up(file))))
    spec = copy.deepcopy(ray_service()["spec"]["rayClusterConfig"])
    return dict(_derive_autoscaling_config_from_ray_cr({"metadata": {"name": "baton", "namespace": "n"}, "spec": spec}))


def node_types(file: str) -> dict[str, dict[str, Any]]:
    return dict(autoscaling_config(file)["available_node_types"])


def demands(file: str = "aws") -> dict[str, list[dict[str, float]]]:
    """What each replica of a deployment asks of a node, as cluster/app.py gives it to Ray."""
    config = application(file)
    return {
        "prefill": [_of_worker(config.prefill)] * config.prefill.replicas,
        "decode": [_of_worker(config.decode)] * config.decode.replicas,
        "ingress": [{"CPU": config.ingress.cpus}] * config.ingress.replicas,
        "scheduler": [{"CPU": SCHEDULER_CPUS}],
    }


def launched(file: str, wanted: list[dict[str, float]]) -> dict[str, int]:
    """The nodes that Ray's autoscaler starts for these demands, in an empty cluster without a least number of nodes."""
    config = autoscaling_config(file)
    for node_type in config["available_node_types"].values():
        node_type["min_workers"] = 0
    ours = AutoscalingConfig(configs=config, skip_content_hash=True)
    requests = [ResourceRequest(resources_bundle=demand) for demand in wanted]
    reply = ResourceDemandScheduler().schedule(
        SchedulingRequest(
            disable_launch_config_check=True,
            node_type_configs=ours.get_node_type_configs(),
            max_num_nodes=config["max_workers"] + 1,
            resource_requests=ResourceRequestUtil.group_by_count(requests),
        )
    )
    assert reply.infeasible_resource_requests == []
    return {launch.instance_type: launch.count for launch in reply.to_launch}


def num_fitting(file: str, node_type: str, demand: dict[str, float]) -> int:
    """How many replicas that ask for this fit on a node."""
    resources = node_types(file)[node_type]["resources"]
    return int(min(resources.get(name, 0) // amount for name, amount in demand.items()))


def _of_worker(pool: PoolConfig) -> dict[str, float]:
    assert not pool.label_selector and pool.accelerator_type is None, "the custom resource alone pins a pool"
    return {name: amount for name, amount in {"CPU": pool.cpus, "GPU": pool.gpus, **pool.resources}.items() if amount}

"""Each pool lands on its own node type, the ingress and the Scheduler on another: as Ray's own autoscaler decides. An
operator changes numbers, instances and regions: the tests compare what the files say in several places.
"""

from math import ceil
from typing import Any

import pytest
from ray.autoscaler.v2.instance_manager.config import AutoscalingConfig

from tests.cluster_files.node_types import (
    CLOUDS,
    FILES,
    application,
    autoscaling_config,
    demands,
    launched,
    node_types,
    num_fitting,
    ray_service,
)

GPUS = {
    "p6-b200.48xlarge": 8,
    "p5.48xlarge": 8,
    "p5e.48xlarge": 8,
    "p5en.48xlarge": 8,
    "p4d.24xlarge": 8,
    "p4de.24xlarge": 8,
    "g6e.12xlarge": 4,
    "g6e.48xlarge": 8,
    "a4-highgpu-8g": 8,
    "a3-ultragpu-8g": 8,
    "a3-megagpu-8g": 8,
    "a3-highgpu-8g": 8,
    "a2-ultragpu-8g": 8,
    "a2-highgpu-8g": 8,
}
"""GPUs of each kind of instance, as the clouds list them."""
CPUS = {"m7i.4xlarge": 16, "n2-standard-16": 16}
"""Virtual CPUs of each kind of instance that has ingress replicas."""
HOMES = {"prefill": "prefill", "decode": "decode", "ingress": "ingress", "scheduler": "ingress"}
"""The node type of each deployment."""
SHAPED_LIKE = ("prefill", "decode", "ingress")
"""Deployments that decide how many nodes of their type are needed. The Scheduler takes what the ingress leaves."""


def num_needed(file: str) -> dict[str, int]:
    """The nodes of each type that the application needs."""
    wanted = demands(file)
    return {name: ceil(len(wanted[name]) / num_fitting(file, name, wanted[name][0])) for name in SHAPED_LIKE}


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("deployment", HOMES)
def test_no_replica_fits_on_a_node_type_of_others(file: str, deployment: str) -> None:
    demand = demands(file)[deployment][0]
    of_all = {autoscaling_config(file)["head_node_type"], *HOMES.values()}
    assert {name for name in of_all if num_fitting(file, name, demand)} == {HOMES[deployment]}


@pytest.mark.parametrize("file", FILES)
def test_autoscaler_starts_the_nodes_that_the_application_needs(file: str) -> None:
    every = [demand for of_deployment in demands(file).values() for demand in of_deployment]
    assert launched(file, every) == num_needed(file)


@pytest.mark.parametrize("file", FILES)
def test_nodes_that_are_always_there_do_not_exceed_those_that_the_application_needs(file: str) -> None:
    types, needed = node_types(file), num_needed(file)
    too_many = {name: types[name]["min_workers"] for name in needed if types[name]["min_workers"] > needed[name]}
    assert not too_many, f"more nodes than the application needs ({needed}) are always there"


@pytest.mark.parametrize("file", FILES)
def test_all_types_may_have_their_most_nodes_at_once(file: str) -> None:
    config = autoscaling_config(file)
    most = {name: config["available_node_types"][name]["max_workers"] for name in SHAPED_LIKE}
    assert config["max_workers"] >= sum(most.values()), f"the cluster's max_workers is less than those of {most}"
    full: list[dict[str, float]] = []
    for name, number in most.items():
        demand = demands(file)[name][0]
        full += [demand] * (number * num_fitting(file, name, demand))
    assert launched(file, full) == most


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("pool", ["prefill", "decode"])
def test_node_has_room_for_as_many_workers_as_it_has_gpus_for(file: str, pool: str) -> None:
    resources, worker = node_types(file)[pool]["resources"], demands(file)[pool][0]
    assert resources[pool] / worker[pool] == resources["GPU"] / worker["GPU"]


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize("node_type", SHAPED_LIKE)
def test_resources_are_those_of_the_instances(cloud: str, node_type: str) -> None:
    written = node_types(cloud)[node_type]
    machine = written["node_config"].get("InstanceType") or written["node_config"]["machineType"]
    resource, known = ("CPU", CPUS) if node_type == "ingress" else ("GPU", GPUS)
    if machine not in known:
        pytest.skip(f"what a {machine} has is not listed in this file")
    assert written["resources"][resource] == known[machine]


@pytest.mark.parametrize("cloud", CLOUDS)
def test_change_of_a_node_type_ends_no_node_that_runs(cloud: str) -> None:
    """Ray's autoscaler v2 ends the nodes whose type has changed only if it is told to compare them."""
    assert AutoscalingConfig(configs=autoscaling_config(cloud), skip_content_hash=True).disable_launch_config_check()


def test_gpu_pods_of_kubernetes_take_the_gpus_that_ray_counts() -> None:
    for group in ray_service()["spec"]["rayClusterConfig"]["workerGroupSpecs"]:
        limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        assert limits.get("nvidia.com/gpu") == group["resources"].get("GPU")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Serve's own, as it is imported
def test_application_asks_ray_for_what_the_tests_assume() -> None:
    from cluster.app import _ingress, _pool, _scheduler
    from decode.deployment import DecodeWorker
    from prefill.deployment import PrefillWorker

    config = application()
    deployments = {
        "prefill": _pool(PrefillWorker, config, config.prefill),
        "decode": _pool(DecodeWorker, config, config.decode),
        "ingress": _ingress(config),
    }
    asked = {name: [_asked(one.ray_actor_options)] * int(one.num_replicas) for name, one in deployments.items()}
    asked["scheduler"] = [_asked(_scheduler(config).ray_actor_options)]
    assert asked == demands()


def _asked(options: dict[str, Any]) -> dict[str, float]:
    asked = {"CPU": options["num_cpus"], "GPU": options.get("num_gpus", 0), **options.get("resources", {})}
    return {name: amount for name, amount in asked.items() if amount}

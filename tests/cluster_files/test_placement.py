"""Each pool lands on its own node type, the ingress and the Scheduler on another: as Ray's own autoscaler decides."""

from typing import Any

import pytest

from tests.cluster_files.node_types import (
    FILES,
    application,
    demands,
    launched,
    node_types,
    ray_service,
)

GPUS = {"p5.48xlarge": 8, "p5en.48xlarge": 8, "a4-highgpu-8g": 8, "a3-ultragpu-8g": 8}
"""GPUs of each kind of instance, as the clouds list them."""
CPUS = {"m7i.4xlarge": 16, "n2-standard-16": 16}
"""Virtual CPUs of each kind of instance that has ingress replicas."""
HOMES = {"prefill": "prefill", "decode": "decode", "ingress": "ingress", "scheduler": "ingress"}
"""The node type of each deployment."""


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("deployment", HOMES)
def test_only_one_node_type_has_what_a_replica_takes(file: str, deployment: str) -> None:
    demand = demands()[deployment][0]
    fitting = [
        name
        for name, node_type in node_types(file).items()
        if all(node_type["resources"].get(resource, 0) >= amount for resource, amount in demand.items())
    ]
    assert fitting == [HOMES[deployment]]


@pytest.mark.parametrize("file", FILES)
def test_autoscaler_starts_the_nodes_that_the_application_needs(file: str) -> None:
    every = [demand for of_deployment in demands().values() for demand in of_deployment]
    assert launched(file, every) == {"prefill": 1, "decode": 1, "ingress": 2}


@pytest.mark.parametrize("file", FILES)
def test_nodes_that_are_always_there_are_those_that_the_application_needs(file: str) -> None:
    least = {name: node_type["min_workers"] for name, node_type in node_types(file).items()}
    assert {name: least[name] for name in HOMES.values()} == {"prefill": 1, "decode": 1, "ingress": 2}
    assert sum(least.values()) == 4


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("pool", ["prefill", "decode"])
def test_node_has_room_for_as_many_workers_as_it_has_gpus_for(file: str, pool: str) -> None:
    resources, worker = node_types(file)[pool]["resources"], demands()[pool][0]
    assert resources[pool] / worker[pool] == resources["GPU"] / worker["GPU"]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("pool", ["prefill", "decode"])
def test_second_node_of_a_pool_can_be_started(file: str, pool: str) -> None:
    twice = demands()[pool] * 2
    assert launched(file, twice) == {pool: 2}


@pytest.mark.parametrize("cloud", ["aws", "gcp"])
def test_resources_are_those_of_the_instances(cloud: str) -> None:
    types = node_types(cloud)
    machine = {
        name: node_type["node_config"].get("InstanceType") or node_type["node_config"]["machineType"]
        for name, node_type in types.items()
    }
    assert {name: types[name]["resources"]["GPU"] for name in ("prefill", "decode")} == {
        name: GPUS[machine[name]] for name in ("prefill", "decode")
    }
    assert types["ingress"]["resources"] == {"CPU": CPUS[machine["ingress"]]}
    assert machine["prefill"] != machine["decode"]


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
    asked["scheduler"] = [_asked(_scheduler(config)._bound_deployment.ray_actor_options)]
    assert asked == demands()


def _asked(options: dict[str, Any]) -> dict[str, float]:
    asked = {"CPU": options["num_cpus"], "GPU": options.get("num_gpus", 0), **options.get("resources", {})}
    return {name: amount for name, amount in asked.items() if amount}

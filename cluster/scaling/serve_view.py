"""What PoolScaler asks Serve's controller: the targets of the pools, and which replicas would be stopped first."""

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import ray
from ray.exceptions import RayError
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

from cluster.messages.ids import Pool, WorkerId
from cluster.scaling.pool_sizes import PoolSizes
from cluster.scaling.victims import Replica, victims

ANSWER_S = 5.0
"""Time that the controller has for an answer, in seconds. Then nothing is stopped for now. Longer holds up the growth
of the pools while the controller is away; shorter stops no workers while it is busy.
"""
SETTLED = {"STARTING", "RUNNING", "STOPPING"}
"""States of replicas that Serve has no doubt about. After a restart of its controller, it recovers its replicas one
after another.
"""
HEAD_RESOURCE = "node:__internal_head__"
"""The resource by which Ray marks the head node."""


class ServeAway(Exception):
    """Serve's controller does not answer."""


class ScaledPool(NamedTuple):
    """One pool, as Serve knows it."""

    deployment: str
    selector: Mapping[str, str]
    """The labels that its nodes must have."""


class ServeState(msgspec.Struct, frozen=True, kw_only=True):
    sizes: PoolSizes
    """The targets of both pools."""
    victims: dict[Pool, list[WorkerId]]
    """The running workers of each pool, in the order in which Serve would stop them."""
    is_settled: bool
    """Whether Serve knows the states of all replicas of the pools, and has begun to stop those that are too many."""


class ServeView:
    def __init__(self, application: str, pools: Mapping[Pool, ScaledPool]) -> None:
        self._application, self._pools = application, pools

    async def state(self) -> ServeState:
        """Raises ServeAway."""
        try:
            async with asyncio.timeout(ANSWER_S):
                controller = await asyncio.to_thread(ray.get_actor, SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
                details = await controller.get_serve_instance_details.remote()
                nodes = await asyncio.to_thread(ray.nodes)
            return self.read(details["applications"], nodes)
        except (TimeoutError, RayError, ValueError, KeyError) as error:
            raise ServeAway(f"Serve's controller does not tell of {self._application}: {error!r}") from error

    def read(self, applications: dict[str, Any], nodes: list[dict[str, Any]]) -> ServeState:
        """`applications`: by name, as Serve gives their details. `nodes`: as Ray gives them. Replicas of other
        applications count, because they keep a node.
        """
        replicas = [
            Replica(
                worker=WorkerId(replica["replica_id"]),
                deployment=name if application == self._application else f"{application}/{name}",
                node=replica.get("node_id"),
                is_running=replica["state"] == "RUNNING",
            )
            for application, details in applications.items()
            for name, deployment in details["deployments"].items()
            for replica in deployment["replicas"]
        ]
        deployments = applications[self._application]["deployments"]
        head = next((node["NodeID"] for node in nodes if node["Alive"] and HEAD_RESOURCE in node["Resources"]), None)
        scaled = {pool.deployment for pool in self._pools.values()}
        states = {replica["state"] for name in scaled for replica in deployments[name]["replicas"]}
        return ServeState(
            is_settled=states <= SETTLED,
            sizes=PoolSizes.by_pool(lambda pool: int(deployments[self._pools[pool].deployment]["target_num_replicas"])),
            victims={
                pool: victims(replicas, deployment, head=head, mismatching=_without(selector, nodes))
                for pool, (deployment, selector) in self._pools.items()
            },
        )


def _without(selector: Mapping[str, str], nodes: list[dict[str, Any]]) -> frozenset[str]:
    """The nodes without the labels."""
    return frozenset(node["NodeID"] for node in nodes if not selector.items() <= node.get("Labels", {}).items())

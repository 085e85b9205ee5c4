"""What Ray and Serve tell a process of the cluster: who it is, and where the Scheduler is."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import ray
from ray import get_runtime_context, serve
from ray.exceptions import RayError
from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.util import get_node_ip_address

from cluster.config.network import is_loopback
from cluster.messages.ids import Address, WorkerId
from cluster.network.interface import Interface, own_interface
from cluster.network.secret import establish_secret
from cluster.rpc.connection import ConnectionLost
from cluster.services.folder_use import claim_for_node

Deployment = DeploymentHandle
"""How another module names what it asks, without Ray."""

logger = logging.getLogger("baton.handles")
_BROADCAST_TIMEOUT_S = 5.0
_STATE_NAMESPACE = b"baton_state"
"""Of Ray's key-value store: the node that keeps what is remembered, by application."""
_SECRETS_NAMESPACE = b"baton_secrets"
"""Of Ray's key-value store: one key per application."""
_SCHEDULER_ATTEMPTS, _SCHEDULER_INTERVAL_S = 20, 0.5
"""How often a worker on a loopback address asks for the Scheduler before it loads its engine, and how long it waits in
between. More delays workers while there is no Scheduler; fewer lets a worker on a wrong node load its engine first.
"""


class SchedulerOutOfReach(ConnectionLost):
    """The other side listens where this node cannot connect."""


def connected_handles(deployments: Sequence[DeploymentHandle]) -> list[DeploymentHandle]:
    """This replica's own deployment and these, ready to be asked.

    To be called while the replica starts: what makes a handle asks Serve's controller and the GCS, and holds up the
    event loop until they answer. A handle that is made broadcasts without either.
    """
    own = serve.get_replica_context()
    ingress = serve.get_deployment_handle(own.deployment, app_name=own.app_name)
    return [handle.options() for handle in (ingress, *deployments)]  # which connects it


async def scheduler_address(scheduler: DeploymentHandle) -> Address:
    """Raises ConnectionLost while there is none, or none that this node reaches. Asked by broadcast: a call would have
    Serve probe the replica first, with a deadline that a busy machine misses.
    """
    return await _address_for(own_node(), scheduler)


async def require_reachable_scheduler(scheduler: DeploymentHandle, host: str, own: str) -> None:
    """To be called before a worker loads its engine, which listens on `host` of the node `own`.

    Raises RuntimeError where it cannot reach the Scheduler from its node. Returns where that cannot be told in time.
    """
    if not is_loopback(host):
        return
    for _ in range(_SCHEDULER_ATTEMPTS):
        try:
            await _address_for(own, scheduler)
        except SchedulerOutOfReach as error:
            raise RuntimeError(str(error)) from error
        except ConnectionLost:
            await asyncio.sleep(_SCHEDULER_INTERVAL_S)
        else:
            return


async def _address_for(own: str, scheduler: DeploymentHandle) -> Address:
    for answer in await broadcast(scheduler, "address"):
        if isinstance(answer, tuple):
            address: Address
            address, node = answer
            require_reachable(address, node, own)
            return address
    raise ConnectionLost("there is no Scheduler")


def require_reachable(address: Address, node: str, own: str) -> None:
    """Raises OutOfReach for a process that listens on the loopback address of another node."""
    if is_loopback(address.host) and node != own:
        raise SchedulerOutOfReach(
            f"the Scheduler listens on {address.host} of node {node}, which this process on node {own} cannot reach: "
            "set network.host to an interface by which the nodes reach each other, or keep the application on one node"
        )


def join_cluster() -> None:
    """Give this process the secret of its application. To be called before it listens, connects, or starts an engine.

    Where the operator has not set a secret, Ray's own key-value store keeps one. Whoever may speak to Ray can read it
    there, and could run code in the cluster without it.
    """
    establish_secret(lambda proposed: _kept_first(_SECRETS_NAMESPACE, proposed))


def claim_state(*, is_new: bool) -> None:
    """For an ingress replica that keeps what is remembered on its own node. `is_new`: there is nothing yet. Raises
    InUseElsewhere where another node keeps it.
    """

    def replace(node: str) -> None:
        _internal_kv_put(_application(), node, overwrite=True, namespace=_STATE_NAMESPACE)

    def is_alive(node: str) -> bool:
        return any(known["NodeID"] == node and known["Alive"] for known in ray.nodes())

    before = claim_for_node(own_node(), lambda node: _kept_first(_STATE_NAMESPACE, node), replace, is_alive)
    if before is not None and is_new:
        logger.error(
            "node %s kept the conversations of this application and is gone: this node starts without them. Set "
            "state.database_url to a database that outlives nodes",
            before,
        )


def _kept_first(namespace: bytes, proposed: str) -> str:
    """What Ray's key-value store keeps of this application: the first value that was proposed."""
    _internal_kv_put(_application(), proposed, overwrite=False, namespace=namespace)
    return str(_internal_kv_get(_application(), namespace=namespace), "ascii")


def _application() -> str:
    return str(serve.get_replica_context().app_name)


def own_worker_id() -> WorkerId:
    """The id of the Serve replica that this process is."""
    return WorkerId(serve.get_replica_context().replica_id.unique_id)


def own_rank() -> int:
    """This replica's index among the replicas of its deployment."""
    return int(serve.get_replica_context().rank.rank)


def own_interface_of(host: str | None) -> Interface:
    """What all sockets of this process for the rest of the cluster listen on, by the configuration: `host` is
    AppConfig.internal_host. Raises ValueError where this node does not have it.
    """
    return own_interface(host, str(get_node_ip_address()))


def own_node() -> str:
    """Ray's id of this node."""
    return str(get_runtime_context().get_node_id())


async def broadcast(handle: DeploymentHandle, method: str) -> list[Any]:
    """What each replica of a deployment answers, errors included; one error where the deployment does not answer."""
    try:
        return list(
            await handle.broadcast(method).results_async(timeout_s=_BROADCAST_TIMEOUT_S, return_exceptions=True)
        )
    except (TimeoutError, RayError, RayServeException) as error:
        return [error]

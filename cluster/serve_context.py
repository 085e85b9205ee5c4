"""What this process learns from Ray and Serve: its id, its node, and where the Scheduler is."""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import ray
from ray import get_runtime_context, serve
from ray.exceptions import RayError
from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_list, _internal_kv_put
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.util import get_node_ip_address

from cluster.cell_states import CellStates
from cluster.clients.scheduler_finder import SchedulerFinder
from cluster.config.network import TlsConfig, is_loopback
from cluster.messages.ids import Address, CellName, WorkerId
from cluster.network.certificates import use_certificates
from cluster.network.interface import Interface, own_interface
from cluster.network.secret import establish_secret
from cluster.rpc.connection import ConnectionLost
from cluster.scheduler_registry import SchedulerRecord, SchedulerRegistry
from cluster.services.folder_use import claim_for_node
from cluster.worker_drains import WorkerDrains

Deployment = DeploymentHandle
"""The type of a deployment's handle for modules that must not import Ray."""

logger = logging.getLogger("baton.handles")
_BROADCAST_TIMEOUT_S = 5.0
"""Time in which the replicas of a deployment must answer a broadcast, in seconds. Then the broadcast gives one error.
Longer delays the page of metrics when a replica hangs; shorter loses the answers of busy replicas.
"""
_STATE_NAMESPACE = b"baton_state"
"""Namespace of Ray's key-value store for the node that stores conversations, by application."""
_SECRETS_NAMESPACE = b"baton_secrets"
"""Namespace of Ray's key-value store for secrets, by application."""
_SERVICES_NAMESPACE = b"baton_services"
"""Namespace of Ray's key-value store for random names of services, by application."""
_SCHEDULERS_NAMESPACE = b"baton_schedulers_"
"""Namespace of Ray's key-value store for the registry of Schedulers. The name of the application follows, and a
slash and the name of the cell if there are several.
"""
_CELLS_NAMESPACE = b"baton_cells_"
"""Namespace of Ray's key-value store for which cells take no new requests. The name of the application follows."""
_DRAINS_NAMESPACE = b"baton_drains_"
"""Namespace of Ray's key-value store for the workers that drain. The name of the application follows, and a slash and
the name of the cell if there are several.
"""
_SCHEDULER_ATTEMPTS, _SCHEDULER_INTERVAL_S = 20, 0.5
"""Number of attempts and seconds between them with which a worker on a loopback address asks for the Scheduler before
it loads its engine. After the last attempt, the worker loads its engine unchecked. More or longer delays workers while
there is no Scheduler; fewer or shorter lets a worker on the wrong node load its engine first.
"""


class SchedulerOutOfReach(ConnectionLost):
    """The Scheduler listens on a loopback address of another node."""


def connected_handles(deployments: Sequence[DeploymentHandle]) -> list[DeploymentHandle]:
    """Handles of this replica's own deployment and of `deployments`, ready for calls.

    Call this while the replica starts. The creation of a handle calls Serve's controller and the GCS, and blocks the
    event loop until they answer. A broadcast on an existing handle calls neither.
    """
    own = serve.get_replica_context()
    ingress = serve.get_deployment_handle(own.deployment, app_name=own.app_name)
    return [handle.options() for handle in (ingress, *deployments)]  # `options` connects the handle


def scheduler_registry(cell: CellName | None = None) -> SchedulerRegistry:
    """The registry of the Schedulers of a cell of this application, in Ray's key-value store. `cell` is None if the
    application has only one.
    """
    return registry_of(application(), cell)


def registry_of(application: str, cell: CellName | None) -> SchedulerRegistry:
    """As `scheduler_registry`, for an application."""
    name = application if cell is None else f"{application}/{cell}"
    return SchedulerRegistry(_RayStore(_SCHEDULERS_NAMESPACE + name.encode()))


def worker_drains(epoch: int, cell: CellName | None = None) -> WorkerDrains:
    """Which workers of a cell of this application drain, in Ray's key-value store, for the Scheduler of this epoch.
    `cell` is None if the application has only one.
    """
    name = application() if cell is None else f"{application()}/{cell}"
    return WorkerDrains(_RayStore(_DRAINS_NAMESPACE + name.encode()), epoch)


def cell_states(of_application: str | None = None) -> CellStates:
    """Which cells of an application take no new requests, in Ray's key-value store. Without a name, it is the
    application of this process.
    """
    return CellStates(_RayStore(_CELLS_NAMESPACE + (of_application or application()).encode()))


def scheduler_finder(cell: CellName | None = None) -> Callable[[], Awaitable[SchedulerRecord]]:
    """Returns a function that finds the newest Scheduler of a cell. The function raises ConnectionLost if there is
    none, or none that this node can reach. `cell` is None if the application has only one.
    """
    finder, own = SchedulerFinder(scheduler_registry(cell).newest), own_node()

    async def find() -> SchedulerRecord:
        found = await finder.newest()
        require_reachable(found.address, found.node, own)
        return found

    return find


async def require_reachable_scheduler(find: Callable[[], Awaitable[SchedulerRecord]], host: str) -> None:
    """Check that the Scheduler can be reached from this node, before a worker that listens on `host` loads its engine.

    Raises RuntimeError if the Scheduler cannot be reached from this node. Returns if there is still no Scheduler after
    all attempts.
    """
    if not is_loopback(host):
        return
    for _ in range(_SCHEDULER_ATTEMPTS):
        try:
            await find()
        except SchedulerOutOfReach as error:
            raise RuntimeError(str(error)) from error
        except ConnectionLost:
            await asyncio.sleep(_SCHEDULER_INTERVAL_S)
        else:
            return


def require_reachable(address: Address, node: str, own: str) -> None:
    """Raises SchedulerOutOfReach if the Scheduler listens on the loopback address of another node."""
    if is_loopback(address.host) and node != own:
        raise SchedulerOutOfReach(
            f"the Scheduler listens on {address.host} of node {node}, which this process on node {own} cannot reach: "
            "set network.host to an interface by which the nodes reach each other, or keep the application on one node"
        )


def join_cluster(tls: TlsConfig | None) -> None:
    """Give this process the secret and the certificate of its application. Call this before the process listens,
    connects, or starts an engine.

    If the operator has not set a secret, Ray's own key-value store keeps one. Anyone who can connect to Ray can read
    the secret there, and can run code in the cluster anyway.

    Raises ValueError with the name of the key if a file of `tls` cannot be used.
    """
    use_certificates(tls)
    establish_secret(lambda proposed: _kept_first(_SECRETS_NAMESPACE, proposed))


def claim_state(*, is_new: bool) -> None:
    """Make this node the one that stores the conversations of the application. For an ingress replica with embedded
    servers. `is_new` means that this node has no conversations yet. Raises InUseElsewhere if another live node stores
    them.
    """

    def replace(node: str) -> None:
        _internal_kv_put(application(), node, overwrite=True, namespace=_STATE_NAMESPACE)

    def is_alive(node: str) -> bool:
        return any(known["NodeID"] == node and known["Alive"] for known in ray.nodes())

    before = claim_for_node(own_node(), lambda node: _kept_first(_STATE_NAMESPACE, node), replace, is_alive)
    if before is not None and is_new:
        logger.error(
            "node %s stored the conversations of this application and is gone: this node starts without them. Set "
            "state.database_url to a database that does not depend on a node",
            before,
        )


def _kept_first(namespace: bytes, proposed: str) -> str:
    """Store a value of this application in Ray's key-value store if there is none, and return the stored value."""
    _internal_kv_put(application(), proposed, overwrite=False, namespace=namespace)
    return str(_internal_kv_get(application(), namespace=namespace), "ascii")


def application() -> str:
    """Serve's name of this application."""
    return str(serve.get_replica_context().app_name)


class _RayStore:
    """A `KeyValueStore` (cluster/scheduler_registry.py) in Ray's key-value store."""

    def __init__(self, namespace: bytes) -> None:
        self._namespace = namespace

    def get(self, key: str) -> bytes | None:
        value = _internal_kv_get(key, namespace=self._namespace)
        return bytes(value) if value is not None else None

    def put(self, key: str, value: bytes) -> None:
        _internal_kv_put(key, value, overwrite=True, namespace=self._namespace)

    def put_new(self, key: str, value: bytes) -> bool:
        return not _internal_kv_put(key, value, overwrite=False, namespace=self._namespace)

    def remove(self, key: str) -> None:
        _internal_kv_del(key, namespace=self._namespace)

    def keys(self, prefix: str) -> list[str]:
        return [key.decode() for key in _internal_kv_list(prefix, namespace=self._namespace)]


def own_worker_id() -> WorkerId:
    """The worker id of this process: the id of its Serve replica."""
    return WorkerId(serve.get_replica_context().replica_id.unique_id)


def own_service() -> str:
    """Tells this application apart from those of other clusters on this machine. A random name, which is public."""
    return _kept_first(_SERVICES_NAMESPACE, secrets.token_hex(8))


def own_rank() -> int:
    """The index of this replica in its deployment."""
    return int(serve.get_replica_context().rank.rank)


def own_interface_of(host: str | None) -> Interface:
    """The interface on which this process listens for the rest of the cluster. `host` is AppConfig.internal_host.
    Raises ValueError if this node does not have it.
    """
    return own_interface(host, str(get_node_ip_address()))


def own_node() -> str:
    """Ray's id of this node."""
    return str(get_runtime_context().get_node_id())


async def broadcast(handle: DeploymentHandle, method: str, *arguments: Any) -> list[Any]:
    """Call a method on every replica of a deployment, and return the answers, errors included. Returns one error if the
    deployment does not answer.
    """
    try:
        answering = handle.broadcast(method, *arguments)
        return list(await answering.results_async(timeout_s=_BROADCAST_TIMEOUT_S, return_exceptions=True))
    except (TimeoutError, RayError, RayServeException) as error:
        return [error]

"""The sizes that the pools are to have, in Ray's key-value store: PoolScaler writes them, and the policy in Serve's
controller reads them. Neither waits for the other, and each may be replaced at any time.
"""

from collections.abc import Iterable, Mapping

from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put

_NAMESPACE = b"baton_pool_targets_"
"""Namespace of Ray's key-value store for the targets, by deployment. The name of the application follows."""


def publish(application: str, targets: Mapping[str, int]) -> None:
    """`targets`: replicas by deployment. Blocks until the store has them."""
    for deployment, target in targets.items():
        _internal_kv_put(deployment, b"%d" % target, overwrite=True, namespace=_NAMESPACE + application.encode())


def published(application: str, deployments: Iterable[str]) -> dict[str, int]:
    """Replicas by deployment, for those of `deployments` that have a target. Blocks until the store answers."""
    namespace = _NAMESPACE + application.encode()
    stored = {deployment: _internal_kv_get(deployment, namespace=namespace) for deployment in deployments}
    return {deployment: int(value) for deployment, value in stored.items() if value is not None and value.isdigit()}

"""The sizes that the pools are to have, in Ray's key-value store: PoolScaler writes them, and the policy in Serve's
controller reads them. Neither waits for the other, and each may be replaced at any time.
"""

from collections.abc import Iterable, Mapping

import msgspec
from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put

_NAMESPACE = b"baton_pool_targets_"
"""Namespace of Ray's key-value store for the targets, by deployment. The name of the application follows."""


class Target(msgspec.Struct, frozen=True, array_like=True):
    replicas: int
    told_at: float
    """When it was told last, in seconds since 1970 of the node that tells it. A target is told again at each look, so
    one that stays the same is of a PoolScaler that has ended.
    """


def publish(application: str, targets: Mapping[str, Target]) -> None:
    """`targets`: by deployment. Blocks until the store has them."""
    for deployment, target in targets.items():
        namespace = _NAMESPACE + application.encode()
        _internal_kv_put(deployment, msgspec.msgpack.encode(target), overwrite=True, namespace=namespace)


def published(application: str, deployments: Iterable[str]) -> dict[str, Target]:
    """By deployment, for those of `deployments` that have a target. Blocks until the store answers."""
    namespace, targets = _NAMESPACE + application.encode(), {}
    for deployment in deployments:
        value = _internal_kv_get(deployment, namespace=namespace)
        if value is not None:
            targets[deployment] = msgspec.msgpack.decode(value, type=Target)
    return targets

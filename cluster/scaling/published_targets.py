"""The sizes that the pools are to have, in Ray's key-value store: PoolScaler writes them, and the policy in Serve's
controller reads them. Neither waits for the other, and each may be replaced at any time. The correction that PoolScaler
has learned is beside them, for the PoolScaler after it.
"""

import logging
from collections.abc import Iterable, Mapping

import msgspec
from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put

from cluster.scaling.correction import first_factor

logger = logging.getLogger("baton.scaling")

_NAMESPACE = b"baton_pool_targets_"
"""Namespace of Ray's key-value store for the targets, by deployment. The name of the application follows."""


class Target(msgspec.Struct, frozen=True, array_like=True):
    replicas: int
    told_at: float
    """When it was told last, in seconds since 1970 of the node that tells it. A target is told again at each look, so
    one that stays the same is of a PoolScaler that has ended.
    """
    correction: float = 1.0
    """The factor that PoolScaler has learned (cluster/scaling/correction.py)."""


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


def first_correction(application: str, deployments: Iterable[str], now: float) -> float:
    """The correction with which a new PoolScaler begins: what the one before it has learned, or 1. `now`: seconds since
    1970. Blocks until the store answers.
    """
    try:
        targets = published(application, deployments)
    except Exception:  # whatever the store raises or has: the correction is learned again
        logger.warning("the correction begins at 1, because the last one cannot be read", exc_info=True)
        return 1.0
    newest = max(targets.values(), key=lambda target: target.told_at, default=None)
    return 1.0 if newest is None else first_factor(newest.correction, now - newest.told_at)

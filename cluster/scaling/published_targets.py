"""The sizes that the pools are to have, in Ray's key-value store: PoolScaler writes them, and the policy in Serve's
controller reads them. Neither waits for the other, and each may be replaced at any time.
"""

import msgspec
from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put

_NAMESPACE = b"baton_pool_targets"
"""Namespace of Ray's key-value store for the targets, by application and cell."""


class PublishedTargets(msgspec.Struct, frozen=True, kw_only=True):
    targets: dict[str, int]
    """Replicas by deployment."""


def publish(application: str, targets: dict[str, int]) -> None:
    """Blocks until the store has the targets."""
    message = msgspec.msgpack.encode(PublishedTargets(targets=targets))
    _internal_kv_put(application, message, overwrite=True, namespace=_NAMESPACE)


def published(application: str) -> dict[str, int]:
    """Replicas by deployment. Empty if none were published, or they cannot be read. Blocks until the store answers."""
    message = _internal_kv_get(application, namespace=_NAMESPACE)
    try:
        return msgspec.msgpack.decode(message, type=PublishedTargets).targets if message else {}
    except msgspec.MsgspecError:
        return {}

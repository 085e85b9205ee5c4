"""KV blocks that a worker's caches have gained and lost, as the worker reports them to the Scheduler."""

from enum import StrEnum
from typing import Annotated, Final

import msgspec

from cluster.messages.ids import WorkerId

KEY_BYTES: Final = 8
"""Length of the key of a KV block: the last bytes of vLLM's hash of the block, which vLLM's own KV events carry. Longer
keys cost memory per indexed block; shorter ones have different blocks share a key.
"""
BlockKey = Annotated[bytes, msgspec.Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
"""The key of a KV block. A message with another one is not read."""


class KvTier(StrEnum):
    """Where a worker keeps KV blocks. The fastest tier is first.

    A new tier needs a line here, its arguments of vLLM in kvtransfer/tiers/, the name of its medium in
    cluster/engine/kv_mirror.py, and its place and bits in router/prefixes/index.py and holder.py.
    """

    GPU = "gpu"
    """The engine's own memory, on any device."""
    HOST = "host"
    """The DRAM tier."""
    DISK = "disk"
    """The disk tier."""


class KvChange(msgspec.Struct, frozen=True, array_like=True):
    """KV blocks that were stored in a tier of a worker (`is_stored`) or removed from it. `block_hashes` is None if all
    blocks were removed from all tiers.
    """

    tier: KvTier
    is_stored: bool
    block_hashes: list[BlockKey] | None


class KvEvents(msgspec.Struct, frozen=True, array_like=True):
    """Changes of a worker's caches, in order."""

    worker: WorkerId
    number: int
    """Number of the message. It is one more than the number of the worker's last message."""
    is_snapshot: bool
    """Whether the changes are everything that the worker caches. Earlier changes do not count then."""
    is_exact: bool
    """False if the worker itself has missed changes of its engine and cannot know them."""
    changes: list[KvChange]
    has_more: bool = False
    """Whether the message is a part of a snapshot that goes on in the next message."""

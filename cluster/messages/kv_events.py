"""What the caches of a worker have gained and lost, as the worker tells the Scheduler."""

from enum import StrEnum
from typing import Final

import msgspec

from cluster.messages.ids import WorkerId

KEY_BYTES: Final = 8
"""Length of the key of a KV block: the last bytes of vLLM's hash of the block, which vLLM's own KV events carry. Longer
keys cost memory per indexed block; shorter ones have different blocks share a key.
"""


class KvTier(StrEnum):
    """Where a worker keeps KV blocks, fastest first."""

    GPU = "gpu"
    """The engine's own memory, whatever its device is."""
    HOST = "host"
    DISK = "disk"


class KvChange(msgspec.Struct, frozen=True, array_like=True):
    """KV blocks that have come to a tier of a worker (`is_stored`) or have left it. None: all have left all tiers."""

    tier: KvTier
    is_stored: bool
    block_hashes: list[bytes] | None


class KvEvents(msgspec.Struct, frozen=True, array_like=True):
    """What a worker's caches have gained and lost, in order."""

    worker: WorkerId
    number: int
    """One more than that of the worker's message before."""
    is_snapshot: bool
    """The changes are all that the worker caches: what came before does not count."""
    is_exact: bool
    """False: the worker itself has missed changes of its engine and cannot know them."""
    changes: list[KvChange]

"""WorkerDrains: which workers an operator drains, in a key-value store that all nodes share.

The Scheduler writes it (router/drain_keeper.py), and the next Scheduler process reads it when it starts. So drains
outlive the Scheduler, and not the store.
"""

from collections.abc import Sequence

import msgspec

from cluster.messages.ids import WorkerId
from cluster.scheduler_registry import KeyValueStore
from cluster.unreadable import UNREADABLE

_DRAINING = "draining"


class WorkerDrains:
    def __init__(self, store: KeyValueStore) -> None:
        self._store = store

    def read(self) -> list[WorkerId]:
        """The workers that drain, the one that was drained last is the last. Empty if what is stored cannot be read."""
        kept = self._store.get(_DRAINING)
        try:
            return msgspec.msgpack.decode(kept, type=list[WorkerId]) if kept is not None else []
        except UNREADABLE:
            return []

    def write(self, workers: Sequence[WorkerId]) -> None:
        self._store.put(_DRAINING, msgspec.msgpack.encode(workers))

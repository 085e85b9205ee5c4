"""WorkerDrains: which workers an operator drains, in a key-value store that all nodes share.

The Scheduler writes it (router/drain_keeper.py), and the next Scheduler process takes it over when it starts. So drains
outlive the Scheduler, and not the store.

Each Scheduler writes under its own epoch, which no other one has, and what the highest epoch has written counts. So a
Scheduler that was replaced can still write, at any time, and overwrites nothing of its successor.
"""

from collections.abc import Sequence

import msgspec

from cluster.messages.ids import WorkerId
from cluster.scheduler_registry import KeyValueStore
from cluster.unreadable import UNREADABLE

_PREFIX = "draining-"


class WorkerDrains:
    def __init__(self, store: KeyValueStore, epoch: int) -> None:
        """`epoch`: that of the Scheduler that writes, which it has claimed."""
        self._store = store
        self.epoch = epoch

    def take_over(self) -> list[WorkerId]:
        """The workers that drain, the one that was drained last is the last. Empty if what is stored cannot be read.
        What Schedulers of lower epochs write later does not count.
        """
        before = sorted(epoch for epoch in self._epochs() if epoch <= self.epoch)
        workers = self._written_by(before[-1]) if before else []
        self.write(workers)
        for epoch in before[:-1]:  # a Scheduler that starts at the same time may be about to read the last one
            self._store.remove(f"{_PREFIX}{epoch}")
        return workers

    def write(self, workers: Sequence[WorkerId]) -> None:
        self._store.put(f"{_PREFIX}{self.epoch}", msgspec.msgpack.encode(workers))

    def _epochs(self) -> list[int]:
        """Those under which something is stored."""
        numbers = (key.removeprefix(_PREFIX) for key in self._store.keys(_PREFIX))
        return [int(number) for number in numbers if number.isdecimal()]

    def _written_by(self, epoch: int) -> list[WorkerId]:
        kept = self._store.get(f"{_PREFIX}{epoch}")
        try:
            return msgspec.msgpack.decode(kept, type=list[WorkerId]) if kept is not None else []
        except UNREADABLE:
            return []

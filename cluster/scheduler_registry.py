"""SchedulerRegistry: which Scheduler process is the newest, in a key-value store that all nodes share.

A Scheduler that starts claims an epoch that is higher than every epoch before, and registers itself with it. All other
processes connect to the Scheduler of the highest epoch that they know, and to none of a lower epoch
(cluster/clients/scheduler_client.py). A Scheduler that learns of a higher epoch than its own serves no more
(router/epoch_watch.py). So after a network partition, or while an application is updated, two Schedulers do not share
the workers for long, and every process ends at the same one.

An epoch is at least the wall clock in milliseconds, so that epochs go on if the store has lost its content, and at
least one more than the last one, so that they go on if a clock is wrong.
"""

import time
from typing import Protocol

import msgspec

from cluster.messages.ids import Address
from cluster.unreadable import UNREADABLE

_NEWEST = "newest"
_CLAIM = "epoch-"


class SchedulerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One Scheduler process."""

    epoch: int
    address: Address
    node: str
    """Ray's id of the process's node."""


class KeyValueStore(Protocol):
    """Its methods block for as long as the store takes."""

    def get(self, key: str) -> bytes | None: ...

    def put(self, key: str, value: bytes) -> None: ...

    def put_new(self, key: str, value: bytes) -> bool:
        """Returns False, and stores nothing, if the key has a value."""
        ...

    def remove(self, key: str) -> None: ...

    def keys(self, prefix: str) -> list[str]:
        """The keys that begin with this."""
        ...


class SchedulerRegistry:
    def __init__(self, store: KeyValueStore) -> None:
        self._store = store

    def newest(self) -> SchedulerRecord | None:
        """The Scheduler that registered last. None if there was none, or its record cannot be read."""
        kept = self._store.get(_NEWEST)
        try:
            return msgspec.msgpack.decode(kept, type=SchedulerRecord) if kept is not None else None
        except UNREADABLE:
            return None

    def highest_epoch(self) -> int:
        """The highest epoch that a Scheduler has claimed, which may not be registered yet. 0 if there is none."""
        newest = self.newest()
        claimed = (key.removeprefix(_CLAIM) for key in self._store.keys(_CLAIM))
        epochs = [int(epoch) for epoch in claimed if epoch.isdecimal()]
        return max([*epochs, newest.epoch if newest is not None else 0])

    def claim(self, address: Address, node: str) -> SchedulerRecord:
        """Register a Scheduler process under a new epoch, the highest so far."""
        before = self.newest()
        epoch = max(before.epoch + 1 if before is not None else 0, time.time_ns() // 1_000_000)
        while not self._store.put_new(_claim_of(epoch), b""):
            epoch += 1
        record = SchedulerRecord(epoch=epoch, address=address, node=node)
        self.register(record)
        if before is not None:
            self._store.remove(_claim_of(before.epoch))
        return record

    def register(self, record: SchedulerRecord) -> None:
        """Store the record of a claimed epoch. A claim that was slower may have overwritten a higher one."""
        self._store.put(_NEWEST, msgspec.msgpack.encode(record))


def _claim_of(epoch: int) -> str:
    """The key that makes an epoch belong to one process."""
    return f"{_CLAIM}{epoch}"

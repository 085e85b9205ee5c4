"""What an engine caches, by its KV events, and the messages about it to the Scheduler. Pure.

`EventOrder` puts the engine's numbered batches in order and knows what must be replayed. `KvMirror` keeps the set of
blocks per tier, so that it can send the Scheduler a snapshot at any time, and collects the changes between two
messages. A batch that is lost for good makes the mirror unsure until the engine's caches are emptied. Every message
states whether the mirror is exact.

vLLM may keep one block twice in its own memory, because two requests computed it at once. Then vLLM reports twice that
the block is stored and twice that it is removed.
"""

from typing import Annotated, Generic, TypeVar

import msgspec

from cluster.messages.ids import WorkerId
from cluster.messages.kv_events import KEY_BYTES, KvChange, KvEvents, KvTier

T = TypeVar("T")

MAX_EARLY_BATCHES = 10_000
"""Batches that may wait for a replay. More takes memory of the worker; fewer gives up batches that a slow replay would
still bring.
"""
MAX_BLOCKS_PER_MESSAGE = 1024
"""KV blocks in one message; larger snapshots go on in the messages after it. The Scheduler takes a message at a time,
one or two milliseconds for 1024. More delays its placements; fewer sends more messages.
"""
MAX_UNSENT_BLOCKS = 65_536
"""Changed KV blocks that are kept for the next message. With more changes, a snapshot is sent instead. More takes
memory of the worker; fewer sends snapshots to a Scheduler that was away for a moment.
"""

BlockHash = Annotated[int, msgspec.Meta(ge=0)] | Annotated[bytes, msgspec.Meta(min_length=KEY_BYTES)]
"""What a key of KEY_BYTES can be made of (`_key`). A message with another key would be refused by the Scheduler."""


class BlockStored(msgspec.Struct, frozen=True, tag="BlockStored", gc=False):
    block_hashes: list[BlockHash]
    medium: str | None = None


class BlockRemoved(msgspec.Struct, frozen=True, tag="BlockRemoved", gc=False):
    block_hashes: list[BlockHash]
    medium: str | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True, tag="AllBlocksCleared", gc=False):
    """The engine's own memory no longer caches any block."""


class EventBatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one step of vLLM's engine changed in its caches: the part of vLLM's message that is needed here."""

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


_TIERS = {"GPU": KvTier.GPU, None: KvTier.GPU, "CPU": KvTier.HOST, "STORAGE": KvTier.DISK}


class EventOrder(Generic[T]):
    """Puts batches in the order of their numbers, from 0 on, each once."""

    def __init__(self) -> None:
        self.next = 0
        """The number of the next batch."""
        self._early: dict[int, T] = {}

    @property
    def missing_from(self) -> int | None:
        """The first batch that is missing. None if no later batch has come."""
        return self.next if self._early else None

    def take(self, number: int, batch: T) -> list[T]:
        """Add a batch; return all batches that are next in order."""
        if number >= self.next:
            self._early[number] = batch
        return self._due()

    def give_up(self) -> list[T]:
        """Go on without the missing batches; return those that waited for them."""
        batches: list[T] = []
        while self._early:
            self.next = min(self._early)
            batches += self._due()
        return batches

    @property
    def is_hopeless(self) -> bool:
        """True if too many batches wait for a missing one."""
        return len(self._early) > MAX_EARLY_BATCHES

    def _due(self) -> list[T]:
        batches: list[T] = []
        while (number := self.next) in self._early:
            batches.append(self._early.pop(number))
            self.next = number + 1
        return batches


class KvMirror:
    def __init__(self, worker: WorkerId) -> None:
        self._worker = worker
        self._in_memory: dict[bytes, int] = {}
        """How many times the engine's own memory keeps each block."""
        self._below: dict[KvTier, set[bytes]] = {KvTier.HOST: set(), KvTier.DISK: set()}
        self._unsent: list[KvChange] = []
        self._num_unsent = 0
        self._is_snapshot_due = True
        self._is_unsure = False
        self._is_clearing = False
        """All tiers are being emptied. The engine's next AllBlocksCleared stands for all of them."""
        self._is_cleared = False
        """All tiers have been emptied. Events that come before the engine's AllBlocksCleared are older."""
        self.sent_through = 0
        """The number of the last message that `take` gave."""

    def blocks(self, tier: KvTier) -> frozenset[bytes]:
        return frozenset(self._in_memory if tier is KvTier.GPU else self._below[tier])

    @property
    def is_exact(self) -> bool:
        return not self._is_unsure

    def apply(self, batch: EventBatch) -> None:
        ignores_below = False
        for event in batch.events:
            match event:
                case AllBlocksCleared():
                    # vLLM lists the tiers' events of a step after those of its own memory, whatever came first.
                    ignores_below = self._is_clearing
                    self._on_cleared()
                case BlockStored() | BlockRemoved():
                    tier = _TIERS.get(event.medium)
                    if tier is None or self._is_cleared or (ignores_below and tier is not KvTier.GPU):
                        continue
                    keys = [_key(block_hash) for block_hash in event.block_hashes]
                    self._change(tier, isinstance(event, BlockStored), keys)

    def lose(self) -> None:
        """Some of the engine's changes are lost: the mirror is unsure from now on."""
        self._is_unsure = True
        self._is_clearing = self._is_cleared = False
        self.want_snapshot()

    def expect_clear(self) -> None:
        """All tiers are about to be emptied."""
        self._is_clearing = True

    def clear(self) -> None:
        """All tiers have been emptied. An idle engine reports it only with its next step."""
        if self._is_clearing:
            self._is_cleared = True
            self._empty()

    def want_snapshot(self) -> None:
        """Make the next message a snapshot: the Scheduler does not know what this worker caches."""
        self._is_snapshot_due = True
        self._unsent, self._num_unsent = [], 0

    def take(self) -> list[KvEvents]:
        """The messages for the Scheduler since the last call."""
        is_snapshot, changes = self._is_snapshot_due, self._unsent
        if is_snapshot:
            tiers = {KvTier.GPU: list(self._in_memory), **{tier: list(keys) for tier, keys in self._below.items()}}
            changes = [KvChange(tier, True, keys) for tier, keys in tiers.items() if keys]
        self._is_snapshot_due, self._unsent, self._num_unsent = False, [], 0
        parts = _parts(changes) or ([[]] if is_snapshot else [])
        messages = []
        for number, part in enumerate(parts):
            self.sent_through += 1
            messages.append(
                KvEvents(
                    self._worker,
                    self.sent_through,
                    is_snapshot and number == 0,
                    not self._is_unsure,
                    part,
                    is_snapshot and number < len(parts) - 1,
                )
            )
        return messages

    def _on_cleared(self) -> None:
        if self._is_clearing:
            if not self._is_cleared:
                self._empty()
            self._is_clearing = self._is_cleared = False
        elif any(self._below.values()):
            gone = list(self._in_memory)
            self._in_memory = {}
            self._note(KvTier.GPU, False, gone)
        else:
            self._empty()

    def _empty(self) -> None:
        self._in_memory = {}
        self._below = {tier: set() for tier in self._below}
        self._is_unsure = False
        self.want_snapshot()

    def _change(self, tier: KvTier, is_stored: bool, keys: list[bytes]) -> None:
        if tier is KvTier.GPU:
            changed = [key for key in keys if (self._added(key) if is_stored else self._dropped(key))]
        else:
            held = self._below[tier]
            changed = [key for key in keys if (key in held) is not is_stored]
            (held.update if is_stored else held.difference_update)(changed)
        if changed:
            self._note(tier, is_stored, changed)

    def _added(self, key: bytes) -> bool:
        """Count a block of the engine's own memory. True if the block is new there."""
        count = self._in_memory.get(key, 0)
        self._in_memory[key] = count + 1
        return not count

    def _dropped(self, key: bytes) -> bool:
        """Count a block of the engine's own memory down. True if the block is gone from there."""
        count = self._in_memory.pop(key, 0)
        if count > 1:
            self._in_memory[key] = count - 1
        return count == 1

    def _note(self, tier: KvTier, is_stored: bool, keys: list[bytes]) -> None:
        if self._is_snapshot_due or not keys:
            return
        self._num_unsent += len(keys)
        if self._num_unsent > MAX_UNSENT_BLOCKS:
            self.want_snapshot()
            return
        last = self._unsent[-1] if self._unsent else None
        if last is not None and last.block_hashes is not None and (last.tier, last.is_stored) == (tier, is_stored):
            last.block_hashes.extend(keys)
        else:
            self._unsent.append(KvChange(tier, is_stored, keys))


def _parts(changes: list[KvChange]) -> list[list[KvChange]]:
    """The changes in messages of bounded size."""
    parts: list[list[KvChange]] = []
    room = 0
    for change in changes:
        keys = change.block_hashes or []
        start = 0
        while start < len(keys):
            if not room:
                parts.append([])
                room = MAX_BLOCKS_PER_MESSAGE
            taken = keys[start : start + room]
            parts[-1].append(KvChange(change.tier, change.is_stored, taken))
            start += len(taken)
            room -= len(taken)
    return parts


def _key(block_hash: int | bytes) -> bytes:
    """vLLM gives the last KEY_BYTES of a hash as a number, or all of the hash as bytes if its environment asks for
    that.
    """
    return block_hash.to_bytes(KEY_BYTES, "big") if isinstance(block_hash, int) else block_hash[-KEY_BYTES:]

"""BlockTable: which workers hold which KV blocks, and in which tier.

A holder is a worker from the moment at which nothing is known of its blocks to the moment at which all of them are
forgotten. A holder has a slot in every entry (router/prefixes/holder.py). When a holder is closed, its slot is no
longer live.

When the table is full, the generations of blocks that were not used for longest expire
(router/prefixes/generations.py): they are found no more, and their holders are cut. Blocks count as used when KV events
name them, and when a look-up finds them.

A sweep over the table removes closed slots and expired blocks, a part with each call, so that no call pays for a worker
with a million blocks. Then the slots are free again.

Invariants: there are at most `max_blocks` entries; a free slot has no bit in any entry; a holder that is not cut has
all its blocks in the table.
"""

from collections.abc import Sequence
from typing import Final, final

from router.prefixes.entries import SHARD_COST, Entries
from router.prefixes.generations import Generations
from router.prefixes.holder import ALL, Holder, single_bits, slot_of, unit_of
from router.prefixes.narrowing import Hit, Narrowing
from router.prefixes.worker_bits import MAX_GROUPS

_GENERATIONS: Final = 16
"""Generations of a full table. More has entries written more often, once in each generation in which a block is used;
fewer tells less exactly which blocks were used lately.
"""
_SWEEP_BLOCKS: Final = 256
"""Blocks that a call sweeps at least, on average. More makes each call slower; fewer keeps closed slots in the entries
longer.
"""
_SWEPT_PER_JOINED: Final = 8
"""Blocks that are swept for each block that is added, so that a sweep is faster than the growth of a full table. More
makes each call slower; with less than 6, single calls pay for whole sweeps.
"""
_JOINED_PER_SWEEP: Final = 1 / 32
"""Blocks that are added between two sweeps, for each block of the table, if nothing is closed or expired. More lets the
shards grow by what was removed from them; fewer looks at them in vain.
"""
_MAX_CLOSED: Final = 64
"""Closed slots from which a sweep runs at once. More makes entries larger and look-ups slower; fewer pays for whole
sweeps in single calls.
"""


@final
class BlockTable:
    __slots__ = (
        "_closed",
        "_credit",
        "_entries",
        "_free",
        "_generations",
        "_groups",
        "_holders",
        "_live",
        "_num_joined",
        "_removes_before",
        "_sweep_at",
        "_swept_places",
        "_swept_slots",
        "_swept_through",
        "max_blocks",
    )

    def __init__(self, max_blocks: int) -> None:
        self.max_blocks = max_blocks
        self._generations = Generations(max(1, max_blocks // _GENERATIONS))
        self._entries = Entries(max_blocks, self._generations)
        self._holders: list[Holder | None] = []
        """Holders by slot. None for a slot that is free, or closed and not yet swept."""
        self._free: list[int] = []
        self._closed: list[int] = []
        """Closed slots that the next sweep clears."""
        self._live = 0
        """The GPU bit, which is the lowest one, of every live slot."""
        self._sweep_at: int = self._entries.num_shards
        """The shard that is swept next. The number of shards if no sweep is under way."""
        self._swept_slots: list[int] = []
        """Closed slots that the current sweep clears."""
        self._swept_places = 0
        """The bits of `_swept_slots`."""
        self._removes_before = 0
        """Generation before which the current sweep removes blocks. 0 if none has expired since the sweep before."""
        self._swept_through = 0
        """Generation before which no block is left after the current sweep."""
        self._credit = 0
        """Blocks that may be swept now."""
        self._num_joined = 0
        """Blocks that were added since the latest sweep began."""
        self._groups: dict[int, int] = {}
        """Bits of workers by GPU bits of their slots: a cache for `_workers_of`."""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def has_room(self) -> bool:
        """Whether dropped blocks of a worker may come back, without the blocks of others being dropped for them."""
        return len(self._entries) <= self.max_blocks // 2

    def open(self, worker_bit: int) -> Holder:
        """A holder without blocks. `worker_bit`: the worker's bit in WorkerBits."""
        slot = self._free.pop() if self._free else len(self._holders)
        holder = Holder(worker_bit, slot)
        if slot == len(self._holders):
            self._holders.append(holder)
        else:
            self._holders[slot] = holder
        self._live |= holder.unit
        self._groups.clear()
        return holder

    def close(self, holder: Holder) -> None:
        """Forget all blocks of the holder."""
        holder.is_live = False
        self._holders[holder.slot] = None
        self._live ^= holder.unit
        self._groups.clear()
        if not holder.has_blocks:
            self._free.append(holder.slot)
            return
        self._closed.append(holder.slot)
        while len(self._closed) > _MAX_CLOSED:
            self._sweep_all()

    def join(self, holder: Holder, place: int, hashes: Sequence[bytes]) -> None:
        """The holder has these blocks in the tier `place`. They count as used. If the table has no room for all of
        them, it keeps the first ones.
        """
        holder.has_blocks = True
        self._num_joined += len(hashes)
        most = max(1, self.max_blocks // _GENERATIONS)
        for end in range(len(hashes), 0, -most):
            part = hashes[max(0, end - most) : end]
            while len(self._entries) + len(part) > self.max_blocks:
                self._expire(self.max_blocks - len(part))
                self._sweep_all()
            self._entries.use(part, holder.bits[place], holder.entry(place, self._generations.current))

    def leave(self, holder: Holder, place: int, hashes: Sequence[bytes]) -> None:
        """The holder no longer has these blocks in the tier `place`."""
        self._entries.remove(hashes, holder.bits[place])

    def longest(self, hashes: Sequence[bytes]) -> list[tuple[Hit, int]]:
        """The hits of a prompt, each with the bits of its workers. Workers without the first block are absent. The
        blocks that are found count as used if the table is at least half full.
        """
        found = Narrowing(self._live)
        is_old = self._entries.walk(hashes, found)
        found.end()
        if is_old and len(self._entries) >= self.max_blocks // 2:
            self._entries.use(hashes[: found.depth], 0, 0)
        return [(hit, self._workers_of(units)) for hit, units in found.found]

    def sweep(self, num_joined: int = 0) -> None:
        """Go on with the sweep that removes closed slots and expired blocks. `num_joined`: blocks that were added since
        the last call.
        """
        entries = self._entries
        if self._sweep_at == entries.num_shards and not self._begin_sweep():
            return
        self._credit += max(_SWEEP_BLOCKS, _SWEPT_PER_JOINED * num_joined)
        while self._sweep_at < entries.num_shards and self._credit > 0:
            self._credit -= entries.sweep(self._sweep_at, self._swept_places, self._removes_before)
            self._sweep_at += 1
        if self._sweep_at == entries.num_shards:
            self._generations.clear(self._swept_places)
            self._free += self._swept_slots
            self._swept_slots = []
            self._swept_places = self._credit = 0

    def validate(self) -> None:
        """Assert every invariant."""
        assert len(self._entries) <= self.max_blocks
        live = [holder.slot for holder in self._holders if holder is not None]
        known = [*self._closed, *self._swept_slots, *live]
        self._entries.validate(_places_of(known))
        for holder in self._holders:
            assert holder is None or holder.is_live
        assert self._live == sum([unit_of(slot) for slot in live])
        assert sorted([*self._free, *known]) == list(range(len(self._holders)))

    def _begin_sweep(self) -> bool:
        num_blocks = len(self._entries)
        if num_blocks > self.max_blocks * 7 // 8:
            self._expire(self.max_blocks * 3 // 4)
        has_expired = self._generations.oldest > self._swept_through
        if not self._closed and not has_expired and self._num_joined <= num_blocks * _JOINED_PER_SWEEP:
            return False
        self._num_joined = self._sweep_at = 0
        self._removes_before = self._generations.oldest if has_expired else 0
        self._swept_through = self._generations.oldest
        self._swept_slots, self._closed = self._closed, []
        self._swept_places = _places_of(self._swept_slots)
        return True

    def _sweep_all(self) -> None:
        """End the sweep that is under way, and another one."""
        for _ in range(2):
            self._credit = len(self._entries) + SHARD_COST * self._entries.num_shards
            self.sweep()

    def _expire(self, num_kept: int) -> None:
        """Find the oldest blocks no more, so that `num_kept` are left. Their holders are cut."""
        places = self._generations.expire(num_kept)
        if places:
            for holder in self._holders:
                if holder is not None and places & ALL * holder.unit:
                    holder.is_cut = True

    def _workers_of(self, units: int) -> int:
        group = self._groups.get(units)
        if group is None:
            if len(self._groups) >= MAX_GROUPS:
                self._groups.clear()
            holders = [self._holders[slot_of(unit)] for unit in single_bits(units)]
            group = self._groups[units] = sum([holder.worker_bit for holder in holders if holder is not None])
        return group


def _places_of(slots: list[int]) -> int:
    """The bits of all tiers of these slots."""
    return sum([ALL * unit_of(slot) for slot in slots])

"""BlockTable: which workers hold which KV blocks, and in which tier.

A worker is a holder here. With its first block it gets a slot in every entry (router/prefixes/holder.py). When all of
its blocks are forgotten, the slot is closed: entries may still have it, and it no longer counts.

When the table is full, the generations of blocks that were not used for longest expire
(router/prefixes/generations.py): they are found no more, and their holders are cut. Blocks count as used when KV events
name them, and when a look-up finds them.

A sweep over the table removes closed slots and expired blocks. Then the slots are free again. Each call sweeps a small
part of the table, so that none pays for a worker with a million blocks. What comes faster than the sweep makes room for
it is not taken in, and the holder is cut: a block for which the table has no room, and all blocks of a holder that has
too many closed slots.

Invariants: there are at most `max_blocks` entries; a free slot has no bit in any entry; a holder that is not cut has
all its blocks in the table; a holder has at most _MAX_CLOSED_OF_ONE closed slots, and all together have a bounded
number.
"""

from collections.abc import Sequence
from typing import Final, final

from router.prefixes.entries import Entries
from router.prefixes.generations import Generations
from router.prefixes.holder import ALL, NO_SLOT, Holder, single_bits, slot_of, unit_of
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
makes each call slower; with less than 6, the table refuses blocks.
"""
_MOST_SWEPT: Final = 8192
"""Blocks after which a call that adds blocks stops to sweep, with the shard that reaches it. More makes single calls
slower, by up to 1 us for a block that goes; fewer has large messages sweep less than _SWEPT_PER_JOINED.
"""
_STEP_BLOCKS: Final = 2048
"""The same for calls that only sweep. More makes placements wait longer for each; fewer takes longer until closed slots
are free.
"""
_JOINED_PER_SWEEP: Final = 1 / 32
"""Blocks that are added between two sweeps, for each block of the table, if nothing is closed or expired. More lets the
shards grow by what was removed from them; fewer looks at them in vain.
"""
_MANY_CLOSED: Final = 64
"""Closed slots from which the table asks to be swept without calls that change it (`needs_sweep`). More makes entries
larger and look-ups slower; fewer sweeps the whole table for a few workers that have left.
"""
_MAX_CLOSED_OF_ONE: Final = 8
"""Closed slots of a worker from which the table takes in none of its blocks. More lets one worker slow down all
look-ups by emptying its caches again and again; fewer cuts a worker that does so a few times during one sweep.
"""
_MAX_CLOSED: Final = 1024
"""Closed slots of all workers from which no worker gets another slot. More makes entries larger and look-ups slower;
fewer cuts new workers when many others have just left.
"""


@final
class _ClosedSlot:
    __slots__ = ("holder", "slot")

    def __init__(self, slot: int, holder: Holder) -> None:
        self.slot = slot
        self.holder = holder
        """The holder that had the slot."""


@final
class BlockTable:
    __slots__ = (
        "_clean_through",
        "_closed",
        "_credit",
        "_entries",
        "_free",
        "_generations",
        "_groups",
        "_holders",
        "_live",
        "_num_joined",
        "_sweep_at",
        "_swept",
        "_swept_places",
        "_swept_through",
        "max_blocks",
    )

    def __init__(self, max_blocks: int) -> None:
        self.max_blocks = max_blocks
        self._generations = Generations(max(1, max_blocks // _GENERATIONS))
        self._entries = Entries(max_blocks, self._generations)
        self._holders: list[Holder | None] = []
        """Holders by slot. None for a slot that is free or closed."""
        self._free: list[int] = []
        self._closed: list[_ClosedSlot] = []
        """Slots that the next sweep clears."""
        self._live = 0
        """The GPU bit, which is the lowest one, of the slot of every holder."""
        self._sweep_at: int = self._entries.num_shards
        """The shard that is swept next. The number of shards if no sweep is under way."""
        self._swept: list[_ClosedSlot] = []
        """Slots that the current sweep clears."""
        self._swept_places = 0
        """The bits of `_swept`."""
        self._swept_through = 0
        """Generation before which no block is left after the current sweep."""
        self._clean_through = 0
        """Generation before which no block is left now."""
        self._credit = 0
        """Blocks that were due to be swept and are not yet. Negative after a shard that was larger."""
        self._num_joined = 0
        """Blocks that were added since the latest sweep began."""
        self._groups: dict[int, int] = {}
        """Bits of workers by GPU bits of their slots: a cache for `_workers_of`."""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def needs_sweep(self) -> bool:
        """So many slots are closed that they slow down look-ups: `sweep_step` is to be called until they are free."""
        return self._num_closed > _MANY_CLOSED

    def has_room_for(self, holder: Holder) -> bool:
        """Whether dropped blocks of a worker may come back, without the blocks of others being dropped for them. They
        come as a snapshot, which closes the slot that the worker has.
        """
        num_closed = holder.num_closed + (holder.slot != NO_SLOT)
        has_slot = num_closed < _MAX_CLOSED_OF_ONE and self._num_closed < _MAX_CLOSED
        return has_slot and len(self._entries) <= self.max_blocks // 2

    def clear(self, holder: Holder) -> None:
        """Forget all blocks of the holder."""
        holder.is_cut = False
        if holder.slot == NO_SLOT:
            return
        self._holders[holder.slot] = None
        self._live ^= holder.unit
        self._groups.clear()
        self._closed.append(_ClosedSlot(holder.slot, holder))
        holder.num_closed += 1
        holder.leave_slot()

    def join(self, holder: Holder, place: int, hashes: Sequence[bytes]) -> None:
        """The holder has these blocks in the tier `place`. They count as used. If the table has no room for all of
        them, it keeps the first ones, and the holder is cut.
        """
        if not hashes:
            return
        if holder.slot == NO_SLOT and not self._give_slot(holder):
            holder.is_cut = True
            return
        self._num_joined += len(hashes)
        most = max(1, self.max_blocks // _GENERATIONS)
        for end in range(len(hashes), 0, -most):
            part = hashes[max(0, end - most) : end]
            fresh = 0
            if self._make_room(len(part)):
                fresh = holder.entry(place, self._generations.current)
            else:
                holder.is_cut = True
            self._entries.use(part, holder.bits[place], fresh)

    def leave(self, holder: Holder, place: int, hashes: Sequence[bytes]) -> None:
        """The holder no longer has these blocks in the tier `place`."""
        if holder.slot != NO_SLOT:
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
        if self._generations.num_live > self.max_blocks * 7 // 8:
            self._expire()
        if not self._is_sweeping():
            return
        self._credit += max(_SWEEP_BLOCKS, _SWEPT_PER_JOINED * num_joined)
        self._credit -= self._sweep(min(self._credit, _MOST_SWEPT))

    def sweep_step(self) -> None:
        """Go on with the sweep as far as one call may."""
        if self._is_sweeping():
            self._sweep(_STEP_BLOCKS)

    def validate(self) -> None:
        """Assert every invariant."""
        assert len(self._entries) <= self.max_blocks
        live = [holder.slot for holder in self._holders if holder is not None]
        closed = [*self._closed, *self._swept]
        known = [*live, *[was.slot for was in closed]]
        self._entries.validate(_places_of(known))
        for slot, holder in enumerate(self._holders):
            assert holder is None or (holder.slot == slot and holder.unit == unit_of(slot))
        assert self._live == sum([unit_of(slot) for slot in live])
        assert sorted([*self._free, *known]) == list(range(len(self._holders)))
        assert self._swept_places == _places_of([was.slot for was in self._swept])
        for was in closed:
            num_closed = sum(other.holder is was.holder for other in closed)
            assert was.holder.num_closed == num_closed <= _MAX_CLOSED_OF_ONE

    @property
    def _num_closed(self) -> int:
        return len(self._closed) + len(self._swept)

    def _give_slot(self, holder: Holder) -> bool:
        """Returns False if too many slots are closed."""
        if holder.num_closed >= _MAX_CLOSED_OF_ONE or self._num_closed >= _MAX_CLOSED:
            return False
        if not self._free:
            self._free.append(len(self._holders))
            self._holders.append(None)
        holder.take_slot(self._free.pop())
        self._holders[holder.slot] = holder
        self._live |= holder.unit
        self._groups.clear()
        return True

    def _make_room(self, num_blocks: int) -> bool:
        """Returns whether the table has room for so many further blocks."""
        if len(self._entries) + num_blocks > self.max_blocks:
            if self._generations.num_live + num_blocks > self.max_blocks:
                self._expire(num_blocks)
            if self._is_sweeping():
                self._sweep(_MOST_SWEPT)
        return len(self._entries) + num_blocks <= self.max_blocks

    def _is_sweeping(self) -> bool:
        """Whether a sweep is under way. One begins if it is needed."""
        if self._sweep_at < self._entries.num_shards:
            return True
        has_expired = self._generations.oldest > self._clean_through
        if not self._closed and not has_expired and self._num_joined <= len(self._entries) * _JOINED_PER_SWEEP:
            return False
        self._num_joined = self._sweep_at = self._credit = 0
        self._swept_through = self._generations.oldest
        self._swept, self._closed = self._closed, []
        self._swept_places = _places_of([was.slot for was in self._swept])
        return True

    def _sweep(self, num_blocks: int) -> int:
        """Go on with the sweep until it has looked at so many blocks. Returns the number."""
        entries, oldest, num_swept = self._entries, self._generations.oldest, 0
        removes_before = oldest if oldest > self._clean_through else 0
        while self._sweep_at < entries.num_shards and num_swept < num_blocks:
            num_swept += entries.sweep(self._sweep_at, self._swept_places, removes_before)
            self._sweep_at += 1
        if self._sweep_at == entries.num_shards:
            self._generations.clear(self._swept_places)
            self._clean_through = self._swept_through
            for was in self._swept:
                was.holder.num_closed -= 1
                self._free.append(was.slot)
            self._swept = []
            self._swept_places = 0
        return num_swept

    def _expire(self, num_more: int = 0) -> None:
        """Find the oldest blocks no more, so that at most three quarters of a full table are left, and room for
        `num_more` blocks. Their holders are cut.
        """
        places = self._generations.expire(min(self.max_blocks * 3 // 4, self.max_blocks - num_more))
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

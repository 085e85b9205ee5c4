"""BlockTable: which workers hold which KV blocks, and in which tier. It has one entry for each block: a bit mask.

A holder is a worker from the moment at which nothing is known of its blocks to the moment at which all of them are
forgotten. A holder has a slot in every mask, with one bit for each tier. When a holder is closed, its slot is no longer
live. A sweep over the table clears the bits of closed slots, a part with each call, so that no call pays for a worker
with a million blocks. Then the slot is free again.

One walk finds the prefix of a prompt for all workers: the mask of slots that hold every block so far narrows until no
slot is left. The walk works on runs of equal masks (router/prefixes/runs.py). Beyond the first DENSE_BLOCKS it finds
the end of a run by bisection, to within STRIDE_BLOCKS. Engines evict a prefix from its end, so no block is missing
between equal masks. Equal masks that were written together are one object, so a block costs a key and a place in the
dictionary.

Invariants: there are at most `max_blocks` entries; no entry is 0; a free slot has no bit in any entry.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from sys import getsizeof
from typing import Final, final

from router.prefixes.runs import DENSE_BLOCKS, STRIDE_BLOCKS, runs
from router.prefixes.worker_bits import MAX_GROUPS

GPU, HOST, DISK = 1, 2, 4
ALL = GPU | HOST | DISK

_SLOT_BITS: Final = 3
_KEY_OBJECT_BYTES: Final = 48
"""Memory of a key of KEY_BYTES as a Python object, in bytes."""
_SWEEP_BLOCKS: Final = 256
"""Blocks that a call sweeps at least. More makes each call slower; fewer keeps closed slots in the masks longer."""
_SWEPT_PER_JOINED: Final = 16
"""Blocks that are swept for each block that is added, so that a sweep is faster than the growth of a crowded table.
More makes each call slower; fewer lets the table run full.
"""
_MAX_CLOSED: Final = 64
"""Closed slots from which a sweep runs at once. More makes masks larger and look-ups slower; fewer pays for whole
sweeps in single calls.
"""


@final
class Hit:
    """The leading KV blocks of a prompt that a worker holds."""

    __slots__ = ("num_blocks", "num_gpu_blocks")

    def __init__(self, num_blocks: int, num_gpu_blocks: int) -> None:
        self.num_blocks = num_blocks
        """Blocks in any tier, counted from the start of the prompt without a gap."""
        self.num_gpu_blocks = num_gpu_blocks
        """Blocks in the engine's own memory, counted in the same way."""

    def __repr__(self) -> str:
        return f"Hit({self.num_blocks}, {self.num_gpu_blocks})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Hit):
            return NotImplemented
        return self.num_blocks == other.num_blocks and self.num_gpu_blocks == other.num_gpu_blocks

    def __hash__(self) -> int:
        return hash((self.num_blocks, self.num_gpu_blocks))


@final
class Holder:
    """A worker in the table, until its blocks are forgotten."""

    __slots__ = ("bits", "has_blocks", "is_cut", "is_live", "slot", "unit", "worker_bit")

    def __init__(self, worker_bit: int, slot: int) -> None:
        self.worker_bit = worker_bit
        self.slot = slot
        self.unit = 1 << slot * _SLOT_BITS
        self.bits = {place: place * self.unit for place in (GPU, HOST, DISK)}
        self.is_live = True
        self.has_blocks = False
        self.is_cut = False
        """The table had no room for some blocks of the worker."""


@final
class BlockTable:
    __slots__ = (
        "_blocks",
        "_closed",
        "_free",
        "_groups",
        "_holders",
        "_live",
        "_num_joined",
        "_sweeping",
        "_swept_slots",
        "max_blocks",
    )

    def __init__(self, max_blocks: int) -> None:
        self.max_blocks = max_blocks
        self._blocks: dict[bytes, int] = {}
        self._holders: list[Holder | None] = []
        """Holders by slot. None for a slot that is free, or closed and not yet swept."""
        self._free: list[int] = []
        self._closed: list[int] = []
        """Closed slots that the next sweep clears."""
        self._sweeping: Iterator[bytes] | None = None
        self._swept_slots: list[int] = []
        """Closed slots that the current sweep clears."""
        self._live = 0
        """The GPU bit, which is the lowest one, of every live slot."""
        self._num_joined = 0
        """Blocks that were added since the latest sweep began."""
        self._groups: dict[int, int] = {}
        """Bits of workers by GPU bits of their slots: a cache for `_workers_of`."""

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def memory_bytes(self) -> int:
        """Approximate: masks are left out, because most of them are shared."""
        return getsizeof(self._blocks) + len(self._blocks) * _KEY_OBJECT_BYTES

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
            self.sweep(len(self._blocks) + 1)

    def join(self, holder: Holder, place: int, hashes: Sequence[bytes]) -> None:
        """The holder has these blocks in the tier `place`. Blocks without room in the table are left out; then the
        holder is cut.
        """
        blocks, bits = self._blocks, holder.bits[place]
        holder.has_blocks = True
        self._num_joined += len(hashes)
        for mask, start, end in runs(blocks, hashes):
            if not mask:
                part = hashes[start : min(end, start + self.max_blocks - len(blocks))]
                holder.is_cut |= len(part) < end - start
                blocks.update(dict.fromkeys(part, bits))
            elif not mask & bits:
                blocks.update(dict.fromkeys(hashes[start:end], mask | bits))

    def leave(self, holder: Holder, place: int, hashes: Sequence[bytes]) -> None:
        """The holder no longer has these blocks in the tier `place`."""
        blocks, bits = self._blocks, holder.bits[place]
        for mask, start, end in runs(blocks, hashes):
            if not mask & bits:
                continue
            part = hashes[start:end]
            if rest := mask & ~bits:
                blocks.update(dict.fromkeys(part, rest))
            else:
                for block in part:
                    blocks.pop(block, None)

    def longest(self, hashes: Sequence[bytes]) -> list[tuple[Hit, int]]:
        """The hits of a prompt, each with the bits of its workers. Workers without the first block are absent."""
        hits: list[tuple[Hit, int]] = []
        alive = near = self._live
        # `alive`: GPU bits of the slots that hold every block so far, in any tier.
        # `near`: GPU bits of the slots that hold every block so far in the engine's own memory.
        # `behind`: depths at which slots of `alive` have left `near`.
        behind: dict[int, int] = {}
        depth = 0
        for mask, end in self._walk(hashes):
            if not mask:
                break
            still = alive & (mask | mask >> 1 | mask >> 2)
            if still != alive:
                self._settle(hits, alive ^ still, depth, behind)
                alive = still
                near &= still
                if not alive:
                    return hits
            if (ahead := near & mask) != near:
                for unit in _bits(near ^ ahead):
                    behind[unit] = depth
                near = ahead
            depth = end
        self._settle(hits, alive, depth, behind)
        return hits

    def _walk(self, hashes: Sequence[bytes]) -> Iterator[tuple[int, int]]:
        """Mask and end of each run of a prompt; beyond DENSE_BLOCKS the end is found by bisection."""
        blocks, num_blocks = self._blocks, len(hashes)
        for mask, _, end in runs(blocks, hashes[:DENSE_BLOCKS]):
            yield mask, end
        end = DENSE_BLOCKS
        while end < num_blocks:
            mask, last = blocks.get(hashes[end], 0), end
            stride, grows = STRIDE_BLOCKS, True
            while stride >= STRIDE_BLOCKS:
                is_same = last + stride < num_blocks and blocks.get(hashes[last + stride], 0) == mask
                last += stride * is_same
                grows &= is_same
                stride = stride * 2 if grows else stride // 2
            end = last + 1
            yield mask, end

    def sweep(self, num_joined: int = 0) -> None:
        """Go on with the sweep that clears closed slots. In a crowded table the sweep also makes room: it drops blocks
        that are in no engine's own memory, the oldest first. `num_joined`: blocks that were added since the last call.
        """
        if self._sweeping is None and not self._begin_sweep():
            return
        assert self._sweeping is not None
        part = list(islice(self._sweeping, max(_SWEEP_BLOCKS, _SWEPT_PER_JOINED * num_joined)))
        if not part:
            self._sweeping = None
            self._free += self._swept_slots
            self._swept_slots = []
            return
        blocks = self._blocks
        closed = sum(ALL << slot * _SLOT_BITS for slot in self._swept_slots)
        is_crowded = len(blocks) > self.max_blocks * 3 // 4
        for block, mask in zip(part, map(blocks.get, part), strict=True):
            if mask is None:
                continue
            if mask & closed:
                if kept := mask & ~closed:
                    blocks[block] = mask = kept
                else:
                    del blocks[block]
                    continue
            if is_crowded and not mask & self._live:
                self._cut(mask)
                del blocks[block]

    def validate(self) -> None:
        """Assert every invariant."""
        assert len(self._blocks) <= self.max_blocks
        used = sum(
            ALL << slot * _SLOT_BITS
            for slot in (*self._closed, *self._swept_slots, *(h.slot for h in self._holders if h is not None))
        )
        for mask in self._blocks.values():
            assert mask and not mask & ~used
        for holder in self._holders:
            assert holder is None or holder.is_live
        assert self._live == sum(h.unit for h in self._holders if h is not None)
        known = [*self._free, *self._closed, *self._swept_slots, *(h.slot for h in self._holders if h is not None)]
        assert sorted(known) == list(range(len(self._holders)))

    def _begin_sweep(self) -> bool:
        is_crowded = len(self._blocks) > self.max_blocks * 7 // 8 and self._num_joined >= self.max_blocks // 16
        if not self._closed and not is_crowded:
            return False
        self._num_joined = 0
        self._sweeping = iter(list(self._blocks))
        self._swept_slots, self._closed = self._closed, []
        return True

    def _cut(self, mask: int) -> None:
        """A block with this mask is dropped: its holders are cut."""
        slots = {(bit.bit_length() - 1) // _SLOT_BITS for bit in _bits(mask)}
        for holder in (self._holders[slot] for slot in slots):
            if holder is not None:
                holder.is_cut = True

    def _settle(self, hits: list[tuple[Hit, int]], units: int, depth: int, behind: dict[int, int]) -> None:
        """These slots hold the first `depth` blocks, and not the next one."""
        if not depth:
            return
        if behind:
            for unit in [u for u in behind if u & units]:
                hits.append((Hit(depth, behind.pop(unit)), self._workers_of(unit)))
                units ^= unit
        if units:
            hits.append((Hit(depth, depth), self._workers_of(units)))

    def _workers_of(self, units: int) -> int:
        group = self._groups.get(units)
        if group is None:
            if len(self._groups) >= MAX_GROUPS:
                self._groups.clear()
            holders = [self._holders[(unit.bit_length() - 1) // _SLOT_BITS] for unit in _bits(units)]
            group = self._groups[units] = sum([holder.worker_bit for holder in holders if holder is not None])
        return group


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest
        mask ^= lowest

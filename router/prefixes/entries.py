"""Entries: one for each KV block that the table knows, found by the block's key.

An entry is an int: the places of the block, and the generation in which it was last used (router/prefixes/holder.py).
Equal entries that were written together are one object, so a block costs a key and a place in a dictionary.

The blocks are spread over many dictionaries, the shards, by their keys. One dictionary of ten million blocks would stop
the process for a second or more whenever it grows, and it would take half as much memory again after a time of changes.

Invariants: each entry has a place; an entry of a generation that has expired is not found.
"""

from collections.abc import Sequence
from sys import getsizeof
from typing import Final, final

from router.prefixes.generations import Generations
from router.prefixes.holder import GENERATION
from router.prefixes.narrowing import Narrowing
from router.prefixes.runs import DENSE_BLOCKS, STRIDE_BLOCKS
from router.prefixes.worker_bits import MAX_GROUPS

_SHARD_BLOCKS: Final = 16384
"""Blocks of a shard in a full table. More makes the longest pause longer, which is that of one shard; fewer makes each
step slower, because more shards compete for the processor's caches.
"""
_MAX_SHARDS: Final = 1 << 16
"""Shards at most: two bytes of a key choose one."""
_MAX_BYTES_PER_BLOCK: Final = 56
"""Size of a shard per block from which it is made anew, in bytes. A new one takes 27 to 54. More takes memory; less
would make the same shards anew each time.
"""
_SHARD_COST: Final = 16
"""What a shard costs a sweep, in blocks. More makes sweeps longer; less makes single calls slower."""
_LEAST_BYTES: Final = 256
"""Size of a shard that is never made anew, in bytes: that of an empty dictionary, and a little."""


@final
class Entries:
    __slots__ = ("_interned", "_num_blocks", "_shards", "generations", "num_shards")

    def __init__(self, max_blocks: int, generations: Generations) -> None:
        self.num_shards: int = min(_MAX_SHARDS, 1 << (max(0, max_blocks - 1) // _SHARD_BLOCKS).bit_length())
        self.generations = generations
        self._shards: list[dict[bytes, int]] = [{} for _ in range(self.num_shards)]
        """Entries by key. The last bytes of a key give the number of its shard."""
        self._num_blocks = 0
        self._interned: dict[int, int] = {}
        """Entries that were written lately, so that equal ones are one object."""

    def __len__(self) -> int:
        """Blocks with an entry, those that have expired included."""
        return self._num_blocks

    def use(self, hashes: Sequence[bytes], places: int, fresh: int) -> None:
        """These blocks are used now, and are in `places` as well. Blocks without an entry get the entry `fresh`, or
        none if that is 0.
        """
        shards, shard_mask, current = self._shards, self.num_shards - 1, self.generations.current
        old = new = num_new = num_changed = 0
        for key in hashes:
            shard = shards[(key[-1] | key[-2] << 8) & shard_mask]
            if fresh:
                num_known = len(shard)
                entry = shard.setdefault(key, fresh)
                if len(shard) > num_known:
                    num_new += 1
                    continue
            else:
                entry = shard.get(key, 0)
                if not entry:
                    continue
            if entry != old:
                self._used(old, new, num_changed)
                old, num_changed = entry, 0
                new = self._intern((entry | GENERATION) ^ GENERATION | current | places)
            if new != entry:
                shard[key] = new
                num_changed += 1
        self._used(old, new, num_changed)
        self._used(0, fresh, num_new)
        if self.generations.turn():
            self._interned.clear()

    def remove(self, hashes: Sequence[bytes], places: int) -> None:
        """These blocks are no longer in `places`."""
        shards, shard_mask = self._shards, self.num_shards - 1
        old = rest = 0
        for key in hashes:
            shard = shards[(key[-1] | key[-2] << 8) & shard_mask]
            entry = shard.get(key, 0)
            if entry != old:
                old, rest = entry, self._without(entry, places)
            if rest == entry:
                continue
            if rest:
                shard[key] = rest
            else:
                del shard[key]
                self._num_blocks -= 1
                self.generations.remove(entry & GENERATION, 1)

    def walk(self, hashes: Sequence[bytes], found: Narrowing) -> bool:
        """Narrow `found` down to the holders of each run of equal entries, up to the first block that is not found.
        Beyond DENSE_BLOCKS the end of a run is found by bisection, to within STRIDE_BLOCKS: engines evict a prefix from
        its end, so no block is missing between equal entries. Returns whether a block was last used in an earlier
        generation.
        """
        shards, shard_mask, num_blocks = self._shards, self.num_shards - 1, len(hashes)
        oldest, current = self.generations.oldest, self.generations.current
        end, is_old = 0, False
        for entry, end in self._dense_runs(hashes[:DENSE_BLOCKS]):
            generation = entry & GENERATION
            if generation < oldest or not found.take(entry, end):
                return is_old
            is_old |= generation != current
        if end < DENSE_BLOCKS:
            return is_old
        while end < num_blocks:
            key = hashes[end]
            entry, last = shards[(key[-1] | key[-2] << 8) & shard_mask].get(key, 0), end
            generation = entry & GENERATION
            if not entry or generation < oldest:
                return is_old
            stride, grows = STRIDE_BLOCKS, True
            while stride >= STRIDE_BLOCKS:
                is_same = False
                if last + stride < num_blocks:
                    key = hashes[last + stride]
                    is_same = shards[(key[-1] | key[-2] << 8) & shard_mask].get(key, 0) == entry
                if is_same:
                    last += stride
                grows &= is_same
                stride = stride * 2 if grows else stride // 2
            end = last + 1
            if not found.take(entry, end):
                return is_old
            is_old |= generation != current
        return is_old

    def sweep(self, number: int, places: int, oldest: int) -> int:
        """Remove from a shard the blocks of generations before `oldest`, and `places` from the others. Returns the
        cost, in blocks that were looked at. The shard is made anew if it has become too large for its blocks.
        """
        shard, num_swept = self._shards[number], _SHARD_COST
        if places or oldest:
            num_swept += len(shard)
            gone: list[bytes] = []
            for key, entry in shard.items():
                if oldest and (entry & GENERATION) < oldest:
                    gone.append(key)
                elif entry & places:
                    rest = self._without(entry, places)
                    if rest:
                        shard[key] = rest
                    else:
                        gone.append(key)
            for key in gone:
                self.generations.remove(shard.pop(key) & GENERATION, 1)
            self._num_blocks -= len(gone)
        if getsizeof(shard) > _MAX_BYTES_PER_BLOCK * len(shard) + _LEAST_BYTES:
            fresh: dict[bytes, int] = {}
            fresh.update(shard)
            self._shards[number] = fresh
            num_swept += len(fresh) // 2
        return num_swept

    def validate(self, places: int) -> None:
        """Assert every invariant. `places`: all that an entry may have."""
        assert self._num_blocks == sum(map(len, self._shards))
        counted: dict[int, int] = {}
        for shard in filter(None, self._shards):
            for entry in shard.values():
                assert entry > GENERATION and not ((entry | GENERATION) ^ GENERATION) & ~places
                counted[entry & GENERATION] = counted.get(entry & GENERATION, 0) + 1
        self.generations.validate(counted)

    def _used(self, old: int, new: int, num_blocks: int) -> None:
        """So many blocks had the entry `old`, and have `new` now."""
        if not num_blocks:
            return
        if old:
            self.generations.remove(old & GENERATION, num_blocks)
        else:
            self._num_blocks += num_blocks
        self.generations.add(num_blocks, (new | GENERATION) ^ GENERATION)

    def _without(self, entry: int, places: int) -> int:
        """The entry without these places. 0 if it has no other place."""
        rest = entry & ~places
        if rest == entry:
            return entry
        return self._intern(rest) if rest > GENERATION else 0

    def _intern(self, entry: int) -> int:
        if len(self._interned) >= MAX_GROUPS:
            self._interned.clear()
        return self._interned.setdefault(entry, entry)

    def _dense_runs(self, hashes: Sequence[bytes]) -> list[tuple[int, int]]:
        """The runs among blocks that are looked at one by one, up to the first block without an entry."""
        shards, shard_mask = self._shards, self.num_shards - 1
        found: list[tuple[int, int]] = []
        last, end = -1, 0
        for key in hashes:
            entry = shards[(key[-1] | key[-2] << 8) & shard_mask].get(key, 0)
            if entry != last:
                if end:
                    found.append((last, end))
                if not entry:
                    return found
                last = entry
            end += 1
        if end:
            found.append((last, end))
        return found

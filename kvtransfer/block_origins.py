"""Which cached KV blocks of a decode engine came from which handoff, and which were computed on top of those. Pure.

Blocks are known by vLLM's hashes, which are chained: a hash stands for a block and all blocks before it in its prompt.
The blocks of a request that come after a pulled one count as depending on it. Most were computed on top of it; the
others cannot be found any more once it is gone, because vLLM finds a block only after those before it. Pulled blocks
are noted when the pull is planned, and the blocks after them when their request ends. Requests that run are looked
through when blocks are asked for.

The record follows the caches: with each new block, some of the oldest entries are looked at, and an entry whose block
is nowhere cached is dropped.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from kvtransfer.handoff import PulledBlocks

MAX_BLOCKS = 1 << 18
"""Most blocks whose origin is kept. It takes about 200 bytes for each. If an engine caches more pulled blocks, with its
tiers, then the oldest origins are lost, and blocks of their lenders can only be dropped with all others. More takes
memory; fewer empties more caches as a whole.
"""

LOOKED_AT_PER_BLOCK = 2
"""Oldest entries that are looked at for each new one. Two keep up with engines that evict. More costs time of the
engine; one keeps entries of evicted blocks.
"""

Origins = frozenset[PulledBlocks]
"""Handoffs, each with its lease."""


class BlockOrigins:
    def __init__(self, is_cached: Callable[[bytes], bool], max_blocks: int = MAX_BLOCKS) -> None:
        """`is_cached`: whether a cache of the engine has the block of a hash."""
        self._is_cached = is_cached
        self._max_blocks = max_blocks
        self._of: OrderedDict[bytes, Origins] = OrderedDict()
        """The handoffs that each block depends on. The entry that was looked at longest ago comes first."""
        self._lost: set[str] = set()
        """Lenders of which origins were lost."""

    def __len__(self) -> int:
        return len(self._of)

    def pulled(self, hashes: Sequence[bytes], handoff: PulledBlocks) -> None:
        """These blocks are about to be pulled, or computed on top of what is pulled."""
        origins = Origins((handoff,))
        for one in hashes:
            self._of[one] = self._of.get(one, Origins()) | origins
        self._tidy(len(hashes))

    def finished(self, hashes: Sequence[bytes]) -> None:
        """A request with these blocks, in order, has ended."""
        before, num_new = Origins(), 0
        for one in hashes:
            origins = self._of.get(one)
            if origins is not None and not origins <= before:
                before = before | origins
            if before:
                self._of[one] = before
                num_new += origins is None
        self._tidy(num_new)

    def of(self, blocks: PulledBlocks, running: Iterable[Sequence[bytes]]) -> set[bytes] | None:
        """All blocks that depend on these. `running`: the blocks of each request that has not ended. None if the origin
        of some is lost.
        """
        if blocks.lender in self._lost:
            return None
        found = {one for one, origins in self._of.items() if any(_is_part(origin, blocks) for origin in origins)}
        for hashes in running:
            if (first := first_of(hashes, found)) is not None:
                found.update(hashes[first:])
        return found

    def dropped(self, hashes: Iterable[bytes]) -> None:
        """These blocks are no longer cached."""
        for one in hashes:
            self._of.pop(one, None)

    def clear(self) -> None:
        """No block is cached any more."""
        self._of.clear()
        self._lost.clear()

    def _tidy(self, num_new: int) -> None:
        for _ in range(min(LOOKED_AT_PER_BLOCK * num_new, len(self._of) - num_new)):
            one, origins = self._of.popitem(last=False)
            if self._is_cached(one):
                self._of[one] = origins
        while len(self._of) > self._max_blocks:
            _, origins = self._of.popitem(last=False)
            self._lost.update(origin.lender for origin in origins)


def first_of(hashes: Sequence[bytes], blocks: set[bytes]) -> int | None:
    """Index of the first of these blocks in a request. None if the request has none."""
    return next((number for number, one in enumerate(hashes) if one in blocks), None)


def _is_part(handoff: PulledBlocks, blocks: PulledBlocks) -> bool:
    return handoff.lender == blocks.lender and blocks.lease in (None, handoff.lease)

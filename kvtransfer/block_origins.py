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

from cluster.messages.ids import WorkerId
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

MAX_ORIGINS = 16
"""Most handoffs that are told apart for one block. While a tier keeps a block that many requests share, each of them
may pull it again. Beyond this number, the block is known by its lenders alone, and is dropped with any handoff of
theirs; beyond as many lenders, with any handoff at all. More takes memory, some 70 bytes for each handoff of a block,
and time of the engine's core with each pull; fewer drops more good blocks along with wrong ones.
"""

Origins = frozenset[PulledBlocks]
"""Handoffs. One without a lease stands for all handoffs of its lender."""

_NONE = Origins()
_ANY_LENDER = WorkerId("*")
_ANY = Origins((PulledBlocks(_ANY_LENDER),))
"""All handoffs of all lenders."""


class BlockOrigins:
    def __init__(
        self, is_cached: Callable[[bytes], bool], max_blocks: int = MAX_BLOCKS, max_origins: int = MAX_ORIGINS
    ) -> None:
        """`is_cached`: whether a cache of the engine has the block of a hash."""
        self._is_cached = is_cached
        self._max_blocks = max_blocks
        self._max_origins = max_origins
        self._of: OrderedDict[bytes, Origins] = OrderedDict()
        """The handoffs that each block depends on. The entry that was looked at longest ago comes first."""
        self._lost: set[WorkerId] = set()
        """Lenders of which origins were lost."""

    def __len__(self) -> int:
        return len(self._of)

    def pulled(self, hashes: Sequence[bytes], handoff: PulledBlocks) -> None:
        """These blocks are about to be pulled, or computed on top of what is pulled."""
        own = Origins((handoff,))
        known, united = _NONE, own
        for one in hashes:
            before = self._of.get(one, _NONE)
            if before is not known:  # blocks of one prompt share most of their sets
                known, united = before, self._united(before, own)
            self._of[one] = united
        self._tidy(len(hashes))

    def finished(self, hashes: Sequence[bytes]) -> None:
        """A request with these blocks, in order, has ended."""
        before, num_new = _NONE, 0
        for one in hashes:
            origins = self._of.get(one)
            if origins is not None and origins is not before:
                before = self._united(before, origins)
            if before:
                self._of[one] = before
                num_new += origins is None
        self._tidy(num_new)

    def of(self, blocks: PulledBlocks, running: Iterable[Sequence[bytes]]) -> set[bytes] | None:
        """All blocks that depend on these. `running`: the blocks of each request that has not ended. None if the origin
        of some is lost.
        """
        if not self._lost.isdisjoint((blocks.lender, _ANY_LENDER)):
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

    def _united(self, some: Origins, others: Origins) -> Origins:
        """What depends on both, as precisely as MAX_ORIGINS allows."""
        if others <= some:
            return some
        if some <= others:
            return others
        whole = {origin.lender for origin in some | others if origin.lease is None}
        united = {origin for origin in some | others if origin.lease is None or origin.lender not in whole}
        if len(united) > self._max_origins:
            united = {PulledBlocks(origin.lender) for origin in united}
        return _ANY if _ANY_LENDER in whole or len(united) > self._max_origins else Origins(united)


def first_of(hashes: Sequence[bytes], blocks: set[bytes]) -> int | None:
    """Index of the first of these blocks in a request. None if the request has none."""
    return next((number for number, one in enumerate(hashes) if one in blocks), None)


def _is_part(handoff: PulledBlocks, blocks: PulledBlocks) -> bool:
    if handoff.lender == _ANY_LENDER:
        return True
    return handoff.lender == blocks.lender and (None in (handoff.lease, blocks.lease) or handoff.lease == blocks.lease)

"""vLLM's queue of free KV blocks, with some blocks that are taken last.

vLLM takes free blocks from the front of the queue, and puts blocks that requests have freed at its end: the block that
was not used for longest is taken first. Here, a block that is kept (router/retention/) is spared when it comes to the
front: it goes to a part of its own at the end, before which freed blocks are put. The blocks of this part are taken
when there are no others. So an engine that needs memory takes kept blocks after all others, and never waits for them.

A block that is not kept any more has the place that it would have had: where it is, or the front if it was spared. The
number of free blocks has the kept ones in it.
"""

from collections.abc import Sequence

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import (
    BlockHash,
    BlockHashWithGroupId,
    FreeKVCacheBlockQueue,
    KVCacheBlock,
    make_block_hash_with_group_id,
)


class KeepingQueue(FreeKVCacheBlockQueue):
    def __init__(self, replaced: FreeKVCacheBlockQueue) -> None:
        """Take the place of a queue, with its blocks."""
        # vLLM's constructor is not called: it would link blocks anew that are in use.
        self.num_free_blocks = replaced.num_free_blocks
        self.fake_free_list_head = replaced.fake_free_list_head
        self.fake_free_list_tail = replaced.fake_free_list_tail
        self.num_taken = 0
        """Kept blocks that were taken for other prompts, since the engine started."""
        self._kept: set[BlockHashWithGroupId] = set()
        """Hashes whose blocks are spared."""
        self._missing: set[BlockHashWithGroupId] = set()
        """Those of them whose block was not there or was taken, and was not freed since."""
        self._spared: dict[int, BlockHashWithGroupId] = {}
        """The part at the end: ids of blocks, with the hash that each was spared for."""
        self._spared_of: dict[BlockHashWithGroupId, list[KVCacheBlock]] = {}
        """The blocks of this part by their hash, of which several blocks may have the same."""
        self._first_spared: KVCacheBlock | None = None

    @property
    def num_kept(self) -> int:
        """Blocks that are kept now, in use or free. One that was taken, and is computed again, counts once it is
        free.
        """
        return len(self._kept) - len(self._missing)

    # ---- keeping

    def keep(self, block_hash: BlockHashWithGroupId, *, is_there: bool) -> None:
        """Spare the blocks with this hash. `is_there`: whether the engine has one now."""
        self._kept.add(block_hash)
        if not is_there:
            self._missing.add(block_hash)

    def let_go(self, block_hash: BlockHashWithGroupId) -> None:
        """Spare the blocks with this hash no more. Those that were spared are taken next."""
        self._kept.discard(block_hash)
        self._missing.discard(block_hash)
        for block in list(self._spared_of.get(block_hash, ())):
            self.take_first(block)

    def take_first(self, block: KVCacheBlock) -> None:
        """Move a free block to the front."""
        self.remove(block)
        self.prepend_n([block])

    # ---- vLLM's queue

    def popleft(self) -> KVCacheBlock:
        self._spare(1)
        block = super().popleft()
        self._after_taking([block])
        return block

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        self._spare(n)
        blocks = super().popleft_n(n)
        self._after_taking(blocks)
        return blocks

    def remove(self, block: KVCacheBlock) -> None:
        if block.block_id in self._spared:
            following = block.next_free_block
            if block is self._first_spared:
                self._first_spared = None if following is self.fake_free_list_tail else following
            self._no_longer_spared(block)
        super().remove(block)

    def append(self, block: KVCacheBlock) -> None:
        self.append_n([block])

    def append_n(self, blocks: list[KVCacheBlock]) -> None:
        if self._missing:
            self._missing.difference_update(block.block_hash for block in blocks if block.block_hash is not None)
        following = self._first_spared
        if following is None:
            super().append_n(blocks)
            return
        assert following.prev_free_block is not None
        last: KVCacheBlock = following.prev_free_block
        for block in blocks:
            last.next_free_block, block.prev_free_block = block, last
            last = block
        last.next_free_block, following.prev_free_block = following, last
        self.num_free_blocks += len(blocks)

    def _spare(self, num_taken: int) -> None:
        """Move kept blocks to the end that are among the first ones, until so many others are first."""
        if not self._kept:
            return
        spared: list[KVCacheBlock] = []
        end = self._first_spared or self.fake_free_list_tail
        block = self.fake_free_list_head.next_free_block
        while num_taken and block is not None and block is not end:
            following = block.next_free_block
            if block.block_hash in self._kept:
                super().remove(block)
                spared.append(block)
            else:
                num_taken -= 1
            block = following
        super().append_n(spared)
        if spared and self._first_spared is None:
            self._first_spared = spared[0]
        for block in spared:
            assert block.block_hash is not None
            self._spared[block.block_id] = block.block_hash
            self._spared_of.setdefault(block.block_hash, []).append(block)

    def _after_taking(self, blocks: list[KVCacheBlock]) -> None:
        """Blocks were taken from the front. Only when no other is left, they are spared ones."""
        if not self._spared or not blocks or blocks[-1].block_id not in self._spared:
            return
        for block in blocks:
            if (block_hash := self._spared.get(block.block_id)) is not None:
                self._no_longer_spared(block)
                self.num_taken += 1
                if block_hash not in self._spared_of:
                    self._missing.add(block_hash)
        following = self.fake_free_list_head.next_free_block
        self._first_spared = None if following is self.fake_free_list_tail else following

    def _no_longer_spared(self, block: KVCacheBlock) -> None:
        block_hash = self._spared.pop(block.block_id)
        blocks = self._spared_of[block_hash]
        blocks.remove(block)
        if not blocks:
            del self._spared_of[block_hash]

    def validate(self) -> None:
        """Assert every invariant. Tests call it."""
        blocks = self.get_all_free_blocks()
        assert len(blocks) == self.num_free_blocks == len({block.block_id for block in blocks})
        spared = [block for block in blocks if block.block_id in self._spared]
        assert len(spared) == len(self._spared)
        assert spared == blocks[len(blocks) - len(spared) :]
        assert self._first_spared is (spared[0] if spared else None)
        assert sorted(self._spared) == sorted(b.block_id for each in self._spared_of.values() for b in each)
        assert all(self._spared_of.values())
        assert self._spared_of.keys() <= self._kept
        assert self._missing <= self._kept


class KeptBlocks:
    """The `BlockOrder` (router/retention/kept_conversations.py) of the pool of an engine's core."""

    def __init__(self, pool: BlockPool, num_groups: int) -> None:
        self._pool = pool
        self._groups = range(num_groups)
        self.queue = KeepingQueue(pool.free_block_queue)
        pool.free_block_queue = self.queue

    def keep(self, blocks: Sequence[bytes]) -> None:
        cached = self._pool.cached_block_hash_to_block
        for key in self._keys(blocks):
            self.queue.keep(key, is_there=cached.get_one_block(key) is not None)

    def let_go(self, blocks: Sequence[bytes]) -> None:
        for key in self._keys(blocks):
            self.queue.let_go(key)

    def take_first(self, blocks: Sequence[bytes]) -> None:
        for key in self._keys(blocks):
            if (block := self._free_block(key)) is not None:
                self.queue.take_first(block)

    def _keys(self, blocks: Sequence[bytes]) -> list[BlockHashWithGroupId]:
        groups = self._groups
        return [make_block_hash_with_group_id(BlockHash(each), group) for each in blocks for group in groups]

    def _free_block(self, key: BlockHashWithGroupId) -> KVCacheBlock | None:
        block = self._pool.cached_block_hash_to_block.get_one_block(key)
        return None if block is None or block.ref_cnt or block.is_null or block.pool is not self._pool else block

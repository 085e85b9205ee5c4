"""vLLM's queue of free KV blocks, with some blocks that are taken last.

vLLM takes free blocks from the front of the queue, and puts blocks that requests have freed at its end: the block that
was not used for longest is taken first. Here, blocks that are kept (router/retention/) are a part of their own at the
end. Blocks that are freed come before this part, or into it if they are kept. So an engine that needs memory takes kept
blocks after all others, and never waits for them. The number of free blocks has the kept ones in it.
"""

from collections.abc import Sequence
from typing import Final

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import (
    BlockHash,
    BlockHashWithGroupId,
    FreeKVCacheBlockQueue,
    KVCacheBlock,
    make_block_hash_with_group_id,
)

_ALONE: Final = 1


class KeepingQueue(FreeKVCacheBlockQueue):
    def __init__(self, replaced: FreeKVCacheBlockQueue) -> None:
        """Take the place of a queue, with its blocks."""
        # vLLM's constructor is not called: it would link blocks anew that are in use.
        self.num_free_blocks = replaced.num_free_blocks
        self.fake_free_list_head = replaced.fake_free_list_head
        self.fake_free_list_tail = replaced.fake_free_list_tail
        self.kept_hashes: set[BlockHashWithGroupId] = set()
        """Hashes whose blocks are kept when they are free."""
        self.num_taken = 0
        """Kept blocks that were taken for other prompts, since the engine started."""
        self._kept: dict[int, BlockHashWithGroupId] = {}
        """The kept part of the queue: ids of blocks, with the hash that each was kept for."""
        self._kept_of: dict[BlockHashWithGroupId, list[KVCacheBlock]] = {}
        """The blocks of the kept part by their hash, of which several blocks may have the same."""
        self._first_kept: KVCacheBlock | None = None

    @property
    def num_kept(self) -> int:
        return len(self._kept)

    # ---- keeping

    def keep(self, block: KVCacheBlock) -> None:
        """Move a free block to the end of the kept part."""
        if block.block_hash is not None and block.block_id not in self._kept:
            super().remove(block)
            self._append_kept([block])

    def let_go(self, block_hash: BlockHashWithGroupId) -> None:
        """Move the kept blocks with this hash to the end of the part before."""
        for block in list(self._kept_of.get(block_hash, ())):
            self.remove(block)
            self._append_plain([block])

    def take_first(self, block: KVCacheBlock) -> None:
        """Move a free block to the front."""
        self.remove(block)
        self.prepend_n([block])

    # ---- vLLM's queue

    def popleft(self) -> KVCacheBlock:
        block = super().popleft()
        self._after_taking([block])
        return block

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        blocks = super().popleft_n(n)
        self._after_taking(blocks)
        return blocks

    def remove(self, block: KVCacheBlock) -> None:
        if block.block_id in self._kept:
            following = block.next_free_block
            if block is self._first_kept:
                self._first_kept = None if following is self.fake_free_list_tail else following
            self._no_longer_kept(block)
        super().remove(block)

    def append(self, block: KVCacheBlock) -> None:
        self.append_n([block])

    def append_n(self, blocks: list[KVCacheBlock]) -> None:
        hashes = self.kept_hashes
        if not hashes:
            self._append_plain(blocks)
            return
        self._append_plain([block for block in blocks if block.block_hash not in hashes])
        self._append_kept([block for block in blocks if block.block_hash in hashes])

    def _append_plain(self, blocks: list[KVCacheBlock]) -> None:
        following = self._first_kept
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

    def _append_kept(self, blocks: list[KVCacheBlock]) -> None:
        super().append_n(blocks)
        if blocks and self._first_kept is None:
            self._first_kept = blocks[0]
        for block in blocks:
            assert block.block_hash is not None
            self._kept[block.block_id] = block.block_hash
            self._kept_of.setdefault(block.block_hash, []).append(block)

    def _after_taking(self, blocks: list[KVCacheBlock]) -> None:
        """Blocks were taken from the front. Only when no other is left, they are kept ones."""
        if not self._kept or not blocks or blocks[-1].block_id not in self._kept:
            return
        for block in blocks:
            if block.block_id in self._kept:
                self._no_longer_kept(block)
                self.num_taken += 1
        following = self.fake_free_list_head.next_free_block
        self._first_kept = None if following is self.fake_free_list_tail else following

    def _no_longer_kept(self, block: KVCacheBlock) -> None:
        block_hash = self._kept.pop(block.block_id)
        blocks = self._kept_of[block_hash]
        if len(blocks) == _ALONE:
            del self._kept_of[block_hash]
        else:
            blocks.remove(block)

    def validate(self) -> None:
        """Assert every invariant. Tests call it."""
        blocks = self.get_all_free_blocks()
        assert len(blocks) == self.num_free_blocks == len({block.block_id for block in blocks})
        kept = [block for block in blocks if block.block_id in self._kept]
        assert len(kept) == len(self._kept)
        assert kept == blocks[len(blocks) - len(kept) :]
        assert self._first_kept is (kept[0] if kept else None)
        assert sorted(self._kept) == sorted(b.block_id for each in self._kept_of.values() for b in each)
        assert all(self._kept_of.values())


class KeptBlocks:
    """The `BlockOrder` (router/retention/kept_conversations.py) of the pool of an engine's core."""

    def __init__(self, pool: BlockPool, num_groups: int) -> None:
        self._pool = pool
        self._groups = range(num_groups)
        self.queue = KeepingQueue(pool.free_block_queue)
        pool.free_block_queue = self.queue

    def keep(self, blocks: Sequence[bytes]) -> None:
        for key in self._keys(blocks):
            self.queue.kept_hashes.add(key)
            if (block := self._free_block(key)) is not None:
                self.queue.keep(block)

    def let_go(self, blocks: Sequence[bytes]) -> None:
        for key in self._keys(blocks):
            self.queue.kept_hashes.discard(key)
            self.queue.let_go(key)

    def take_first(self, blocks: Sequence[bytes]) -> None:
        for key in reversed(self._keys(blocks)):
            if (block := self._free_block(key)) is not None:
                self.queue.take_first(block)

    def _keys(self, blocks: Sequence[bytes]) -> list[BlockHashWithGroupId]:
        """The last blocks of a prompt are first: they go first, because fewer prompts begin with them."""
        groups = self._groups
        return [make_block_hash_with_group_id(BlockHash(each), group) for each in reversed(blocks) for group in groups]

    def _free_block(self, key: BlockHashWithGroupId) -> KVCacheBlock | None:
        block = self._pool.cached_block_hash_to_block.get_one_block(key)
        return None if block is None or block.ref_cnt or block.is_null or block.pool is not self._pool else block

"""One engine's memory in the simulator and in vLLM: the same prompts, with the same word about tools, leave the same
blocks.
"""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import BlockHash, KVCacheBlock, make_block_hash_with_group_id

from cluster.engine_scheduler.keeping_queue import KeptBlocks
from cluster.simulation.engine.kv_cache import KvCache
from router.retention.kept_conversations import KeptConversations
from router.retention.return_times import ReturnTimes

BLOCK, NUM_BLOCKS, MOST_KEPT = 16, 10, 6


def chain(names: str) -> list[bytes]:
    """Hashes of blocks, each of all names up to its own."""
    return [names[: i + 1].rjust(32).encode() for i in range(len(names))]


FILL = chain("z" * NUM_BLOCKS)
"""What the memory has at the begin. vLLM would otherwise take dead blocks before memory that was never used."""


class Both:
    """An engine's memory twice. It checks after each prompt that both have the same blocks."""

    def __init__(self) -> None:
        self.simulated = KvCache(NUM_BLOCKS * BLOCK, BLOCK)
        self._pool = BlockPool(NUM_BLOCKS + 1, enable_caching=True, hash_block_size=BLOCK)  # one is vLLM's null block
        self._real = KeptBlocks(self._pool, 1)
        self.conversations = KeptConversations(MOST_KEPT, NUM_BLOCKS, self, ReturnTimes())
        self.begin(FILL)
        self.free(FILL)

    def keep(self, blocks: Sequence[bytes]) -> None:
        self.simulated.keep(blocks)
        self._real.keep(blocks)

    def let_go(self, blocks: Sequence[bytes]) -> None:
        self.simulated.let_go(blocks)
        self._real.let_go(blocks)

    def take_first(self, blocks: Sequence[bytes]) -> None:
        self.simulated.take_first(blocks)
        self._real.take_first(blocks)

    def begin(self, prompt: list[bytes]) -> bool:
        """Compute a prompt. False if there is no memory for it."""
        found = self._found(prompt)
        assert self.simulated.match(prompt, len(prompt)) == (len(found), 0)
        self._pool.touch(found)
        self.simulated.hold(prompt[: len(found)])
        new = prompt[len(found) :]
        fits = len(new) <= self._pool.get_num_free_blocks()
        assert fits == (len(new) * BLOCK <= self.simulated.available_tokens)
        if not fits:
            self._pool.free_blocks(reversed(found))
            self.simulated.release(prompt[: len(found)])
            return False
        for block, name in zip(self._pool.get_new_blocks(len(new)), new, strict=True):
            self._pool._insert_block_hash(make_block_hash_with_group_id(BlockHash(name), 0), block, num_tokens=BLOCK)
        self.simulated.take(len(new) * BLOCK)
        self.simulated.publish(prompt, len(found))
        return True

    def free(self, prompt: list[bytes]) -> None:
        self._pool.free_blocks(reversed(self._found(prompt)))
        self.simulated.release(prompt)

    def validate(self, seen: set[bytes], *, is_in_use: bool) -> None:
        self.simulated.validate()
        self._real.queue.validate()
        cached = {name for name in seen if self._found([name])}
        (on_gpu, _) = self.simulated.snapshot()
        assert cached == set(on_gpu.block_hashes or ())
        assert self._real.queue.num_taken == self.simulated.num_taken
        if not is_in_use:  # vLLM's blocks that were computed again count once they are free
            assert self._real.queue.num_kept == self.simulated.num_kept

    def _found(self, prompt: list[bytes]) -> list[KVCacheBlock]:
        found: list[KVCacheBlock] = []
        for name in prompt:
            if (blocks := self._pool.get_cached_block(BlockHash(name), [0])) is None:
                break
            found += blocks
        return found


PROMPTS = st.text("ab", min_size=1, max_size=5)
STEP = st.tuples(PROMPTS, st.integers(0, 2), st.booleans(), st.floats(0.0, 20.0))


@settings(max_examples=200, deadline=None)
@given(st.lists(STEP, max_size=40))
def test_the_same_blocks_are_left(steps: list[tuple[str, int, bool, float]]) -> None:
    """Each step: a prompt comes, up to two others go on beside it, it calls tools or not, and some time passes."""
    memory, now, running, seen = Both(), 0.0, list[list[bytes]](), set(FILL)
    for names, num_running, calls_tools, later_s in steps:
        now += later_s
        memory.conversations.expire(now)
        prompt = chain(names)
        seen.update(prompt)
        back = memory.conversations.came(prompt, 0, now)
        if memory.begin(prompt):
            running.append(prompt)
        if back is not None:
            memory.conversations.admitted(back)
        while len(running) > num_running:
            answered = running.pop(0)
            memory.free(answered)
            memory.conversations.ended(answered, len(answered), 0, now)
            if calls_tools:
                memory.conversations.awaits(answered[-1][-8:], 0, now)
        memory.validate(seen, is_in_use=bool(running))

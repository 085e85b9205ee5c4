"""vLLM's block pool with blocks that are taken last: no block is lost, doubled or held back."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import BlockHash, KVCacheBlock, make_block_hash_with_group_id

from cluster.engine_scheduler.keeping_queue import KeptBlocks

NUM_BLOCKS = 12


def a_pool() -> tuple[BlockPool, KeptBlocks]:
    pool = BlockPool(NUM_BLOCKS + 1, enable_caching=True, hash_block_size=16)  # one is vLLM's null block
    return pool, KeptBlocks(pool, 1)


def of(name: int) -> bytes:
    return name.to_bytes(32, "big")


def used(pool: BlockPool, *names: int) -> list[KVCacheBlock]:
    """Blocks that a request has computed and freed, the first of them last, as vLLM does."""
    blocks = pool.get_new_blocks(len(names))
    for block, name in zip(blocks, names, strict=True):
        pool._insert_block_hash(make_block_hash_with_group_id(BlockHash(of(name)), 0), block, num_tokens=16)
    pool.free_blocks(reversed(blocks))
    return blocks


def is_cached(pool: BlockPool, name: int) -> bool:
    return pool.get_cached_block(BlockHash(of(name)), [0]) is not None


def test_kept_blocks_are_taken_after_all_others_and_their_last_first() -> None:
    pool, order = a_pool()
    used(pool, 1, 2, 3)
    order.keep([of(1), of(2), of(3)])
    used(pool, *range(10, 19))
    pool.get_new_blocks(9)
    assert [is_cached(pool, name) for name in (1, 2, 3)] == [True] * 3
    pool.get_new_blocks(1)
    assert [is_cached(pool, name) for name in (1, 2, 3)] == [True, True, False]
    assert order.queue.num_taken == 1
    pool.get_new_blocks(2)
    assert pool.get_num_free_blocks() == 0


def test_block_that_is_in_use_is_kept_once_it_is_free() -> None:
    pool, order = a_pool()
    blocks = used(pool, 1)
    pool.touch(blocks)
    order.keep([of(1)])
    pool.free_blocks(blocks)
    used(pool, *range(10, 21))
    assert is_cached(pool, 1)
    order.queue.validate()


def test_block_that_is_let_go_in_time_has_its_place_in_the_usual_order() -> None:
    pool, order = a_pool()
    used(pool, 1)
    used(pool, 2)
    order.keep([of(1)])
    used(pool, *range(10, 19))
    order.let_go([of(1)])
    pool.get_new_blocks(2)  # of which one was never used
    assert [is_cached(pool, name) for name in (1, 2)] == [False, True]


def test_block_that_is_let_go_when_it_would_have_been_taken_is_next() -> None:
    pool, order = a_pool()
    used(pool, 1, 2)
    order.keep([of(1), of(2)])
    used(pool, *range(10, 20))
    used(pool, 20)  # in the place of 19, after both were spared
    order.let_go([of(1), of(2)])
    pool.get_new_blocks(1)
    assert [is_cached(pool, name) for name in (1, 2, 18)] == [True, False, True]
    pool.get_new_blocks(1)
    assert [is_cached(pool, name) for name in (1, 18)] == [False, True]


def test_blocks_that_were_taken_do_not_count_as_kept_until_they_are_computed_again() -> None:
    pool, order = a_pool()
    used(pool, 1)
    order.keep([of(1), of(2)])
    assert order.queue.num_kept == 1
    used(pool, *range(10, 10 + NUM_BLOCKS))
    assert (order.queue.num_kept, order.queue.num_taken) == (0, 1)
    used(pool, 1)
    assert order.queue.num_kept == 1
    order.let_go([of(1), of(2)])
    assert order.queue.num_kept == 0


def test_dead_block_is_taken_first() -> None:
    pool, order = a_pool()
    used(pool, *range(1, NUM_BLOCKS + 1))
    order.take_first([of(1)])
    pool.get_new_blocks(1)
    assert not is_cached(pool, 1)
    assert is_cached(pool, NUM_BLOCKS)


def test_both_copies_of_a_block_are_let_go() -> None:
    pool, order = a_pool()
    order.keep([of(1)])
    used(pool, 1)
    used(pool, *range(20, 31))  # the first copy is not taken: a second one is made
    used(pool, 1)
    order.let_go([of(1)])
    assert order.queue.num_kept == 0
    order.queue.validate()


NAMES = st.lists(st.integers(1, 15), max_size=6, unique=True)
STEP = st.tuples(st.sampled_from(["use", "hold", "free", "keep", "let go", "first", "evict"]), NAMES)


@settings(max_examples=150, deadline=None)
@given(st.lists(STEP, max_size=40))
def test_no_block_is_lost_or_doubled_whatever_happens(steps: list[tuple[str, list[int]]]) -> None:
    pool, order = a_pool()
    held: list[list[Any]] = []
    for what, names in steps:
        hashes = [of(name) for name in names]
        match what:
            case "use" if len(names) <= pool.get_num_free_blocks():
                used(pool, *names)
            case "hold":
                found = [pool.get_cached_block(BlockHash(each), [0]) for each in hashes]
                blocks = [each[0] for each in found if each]
                pool.touch(blocks)
                held.append(blocks)
            case "free" if held:
                pool.free_blocks(held.pop())
            case "keep":
                order.keep(hashes)
            case "let go":
                order.let_go(hashes)
            case "first":
                order.take_first([each for each in hashes if make_key(each) not in order.queue._kept])
            case "evict":
                pool.evict_blocks({name % NUM_BLOCKS + 1 for name in names})
        order.queue.validate()
        in_use = {block.block_id for blocks in held for block in blocks}
        assert pool.get_num_free_blocks() + len(in_use) == NUM_BLOCKS
    assert len(pool.get_new_blocks(pool.get_num_free_blocks())) + len(in_use if steps else ()) == NUM_BLOCKS


def make_key(block_hash: bytes) -> Any:
    return make_block_hash_with_group_id(BlockHash(block_hash), 0)

"""What workers leave behind in the index goes in small parts, and what comes faster than that is not claimed to be
known."""

from cluster.messages.ids import WorkerId
from cluster.messages.kv_events import KvChange, KvEvents, KvTier
from router.prefixes.index import Hit, PrefixIndex

GOOD, BAD = WorkerId("good"), WorkerId("bad")
CLEARED = KvChange(KvTier.GPU, False, None)
MOST_SWEPT = 20_000
"""Blocks that one call may sweep: a millisecond or two."""


def blocks(number: int, length: int) -> list[bytes]:
    """Those of a prompt that shares none with others. They are spread over the index, as hashes are."""
    return [((number << 32 | at) * 0x9E3779B97F4A7C15 % 2**64).to_bytes(8, "big") for at in range(length)]


def stored(hashes: list[bytes]) -> KvChange:
    return KvChange(KvTier.GPU, True, hashes)


class Senders:
    """Workers that number their messages to an index."""

    def __init__(self, index: PrefixIndex) -> None:
        self.index = index
        self.sent: dict[WorkerId, int] = {}

    def send(self, worker: WorkerId, *changes: KvChange, is_snapshot: bool = False) -> None:
        number = self.sent[worker] = self.sent.get(worker, 0) + 1
        self.index.handle(KvEvents(worker, number, is_snapshot or number == 1, True, list(changes)), 0.0)


def an_index_that_many_have_left(num_workers: int) -> tuple[PrefixIndex, Senders, int]:
    """With the number of blocks that they have left behind."""
    index = PrefixIndex()
    senders = Senders(index)
    senders.send(GOOD, stored(blocks(0, 10)))
    leavers = [WorkerId(f"w{number}") for number in range(num_workers)]
    for number, worker in enumerate(leavers, 1):
        senders.send(worker, stored(blocks(number, 100_000 // num_workers)))
    num_blocks = index.num_blocks
    for worker in leavers:
        index.forget(worker)
        assert index.num_blocks == num_blocks, "whoever is told of it does not wait for a sweep"
    index.validate()
    return index, senders, num_blocks


def test_index_that_many_workers_have_left_is_swept_in_small_parts() -> None:
    index, senders, num_blocks = an_index_that_many_have_left(100)
    assert index.longest(blocks(1, 10), 0.0) == {}
    while index.needs_sweep:
        index.sweep()
        assert num_blocks - MOST_SWEPT <= index.num_blocks <= num_blocks
        num_blocks = index.num_blocks
        assert index.longest(blocks(0, 10), 0.0) == {GOOD: Hit(10, 10)}
        index.validate()
    assert index.num_blocks == 10
    assert index.is_exact(GOOD)
    senders.send(WorkerId("w0"), stored(blocks(1, 10)), is_snapshot=True)
    assert index.is_exact(WorkerId("w0"))


def test_index_that_few_have_left_is_swept_by_the_messages_of_others() -> None:
    index, senders, num_blocks = an_index_that_many_have_left(5)
    assert not index.needs_sweep
    while index.num_blocks > 10:
        senders.send(GOOD)
        assert index.num_blocks >= num_blocks - MOST_SWEPT
        num_blocks = index.num_blocks
    index.validate()


def test_message_that_empties_a_cache_often_sweeps_no_more_than_others() -> None:
    index, senders, num_blocks = an_index_that_many_have_left(5)
    senders.send(BAD, *[change for block in blocks(9, 500) for change in (stored([block]), CLEARED)])
    assert index.num_blocks >= num_blocks - MOST_SWEPT
    assert index.longest(blocks(9, 500)[-1:], 0.0) == {}
    assert index.is_exact(BAD), "that it caches nothing is known"
    index.validate()


def test_worker_that_empties_its_cache_faster_than_the_index_is_swept_is_partial_for_a_while_and_alone() -> None:
    index, senders, _ = an_index_that_many_have_left(5)
    held = blocks(9, 20)
    for _ in range(20):
        senders.send(BAD, CLEARED, stored(held))
    assert not index.is_exact(BAD)
    assert index.longest(held, 0.0) == {}, "a block that is forgotten is not found"
    senders.send(BAD, KvChange(KvTier.GPU, False, held[10:]))
    senders.send(GOOD, stored(blocks(0, 20)))
    assert index.is_exact(GOOD)
    assert index.longest(blocks(0, 20), 0.0) == {GOOD: Hit(20, 20)}
    for report in range(2000):
        if index.check(BAD, senders.sent[BAD], float(report)):
            break
    senders.send(BAD, stored(held[:10]), is_snapshot=True)
    assert index.is_exact(BAD)
    assert index.longest(held, 0.0) == {BAD: Hit(10, 10)}
    index.validate()


def test_blocks_that_come_faster_than_old_ones_go_are_not_known_and_not_claimed() -> None:
    index = PrefixIndex(max_blocks=1 << 17)
    senders = Senders(index)
    for number in range(6):
        senders.send(GOOD, stored(blocks(number, 60_000)))
        assert index.num_blocks <= 1 << 17
        index.validate()
    assert not index.is_exact(GOOD)
    for _ in range(1000):
        senders.send(GOOD)
    newest = index.longest(blocks(5, 60_000), 0.0)[GOOD].num_blocks
    assert 1000 < newest <= 60_000
    senders.send(GOOD, stored(blocks(7, 1000)))
    assert index.longest(blocks(7, 1000), 0.0) == {GOOD: Hit(1000, 1000)}

"""KV events that wait for the Scheduler: bounded for each worker, in order, and taken in slices, in turns."""

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cluster.engine.kv_mirror import MAX_BLOCKS_PER_MESSAGE
from cluster.messages.ids import WorkerId
from cluster.messages.kv_events import KvChange, KvEvents, KvTier
from router.prefixes.kv_backlog import (
    MAX_MESSAGE_BLOCKS,
    MAX_OF_WORKER,
    MAX_WAITING_BLOCKS,
    SLICE_BLOCKS,
    KvBacklog,
)

WORKERS = [WorkerId(name) for name in "abc"]
CLEARED = KvChange(KvTier.GPU, False, None)


def a_message(worker: str, number: int, num_blocks: int) -> KvEvents:
    return KvEvents(WorkerId(worker), number, False, True, [KvChange(KvTier.GPU, True, [bytes(8)] * num_blocks)])


def num_blocks_of(messages: list[KvEvents]) -> int:
    return sum(len(change.block_hashes or ()) for message in messages for change in message.changes)


def flood(backlog: KvBacklog, worker: str) -> int:
    """Add messages of a worker until one is dropped. Returns the number of those that were not."""
    number = 0
    while backlog.add(a_message(worker, number, SLICE_BLOCKS)):
        number += 1
    return number


class Backlog(RuleBasedStateMachine):
    """Every message comes out once, in the order of its worker, in slices of bounded size."""

    def __init__(self) -> None:
        super().__init__()
        self.backlog = KvBacklog()
        self.waiting: dict[WorkerId, list[KvEvents]] = defaultdict(list)
        self.number = 0

    @rule(worker=st.sampled_from(WORKERS), num_blocks=st.integers(0, 5000))
    def add(self, worker: WorkerId, num_blocks: int) -> None:
        self.number += 1
        message = a_message(worker, self.number, num_blocks)
        assert self.backlog.add(message)
        self.waiting[worker].append(message)

    @rule()
    def take(self) -> None:
        part = self.backlog.take_slice()
        assert bool(part) == any(self.waiting.values())
        assert num_blocks_of(part[:-1]) < SLICE_BLOCKS
        for message in part:
            assert self.waiting[message.worker].pop(0) == message

    @invariant()
    def is_sound(self) -> None:
        self.backlog.validate()
        assert len(self.backlog) == sum(map(len, self.waiting.values()))
        for worker in WORKERS:
            assert (worker in self.backlog) == bool(self.waiting[worker])


TestBacklog = Backlog.TestCase


def test_worker_that_floods_the_backlog_delays_and_drops_nothing_of_others() -> None:
    backlog = KvBacklog()
    flood(backlog, "bad")
    for turn in range(100):
        assert backlog.add(a_message("good", turn, 16))
        taken = [message.worker for _ in range(2) for message in backlog.take_slice()]
        assert "good" in taken
        flood(backlog, "bad")


def test_workers_take_turns() -> None:
    backlog = KvBacklog()
    for worker in "aabac":
        assert backlog.add(a_message(worker, 1, SLICE_BLOCKS))
    assert "".join(message.worker for _ in range(5) for message in backlog.take_slice()) == "abcaa"


def test_messages_of_a_worker_that_sends_too_much_are_dropped_until_some_are_taken() -> None:
    backlog = KvBacklog()
    number = flood(backlog, "a")
    assert 0.9 * MAX_OF_WORKER < number * SLICE_BLOCKS <= MAX_OF_WORKER
    assert len(backlog) == number
    backlog.take_slice()
    assert backlog.add(a_message("a", number, SLICE_BLOCKS))


def test_many_floods_together_are_bounded_and_leave_a_share_to_everybody() -> None:
    backlog = KvBacklog()
    num_bad = 200
    number = sum(flood(backlog, f"bad{worker}") for worker in range(num_bad))
    assert number * SLICE_BLOCKS < 6 * MAX_WAITING_BLOCKS
    assert flood(backlog, "good") * SLICE_BLOCKS > 0.8 * MAX_WAITING_BLOCKS / (num_bad + 1)
    backlog.validate()


def test_every_worker_may_have_one_message_in_a_full_backlog() -> None:
    backlog = KvBacklog()
    for worker in range(2000):
        assert backlog.add(a_message(f"w{worker}", 1, 4 * SLICE_BLOCKS))


def test_messages_without_blocks_fill_the_backlog_too() -> None:
    backlog = KvBacklog()
    assert not all(backlog.add(a_message("a", 1, 0)) for _ in range(MAX_OF_WORKER))
    backlog, number = KvBacklog(), 0
    while backlog.add(KvEvents(WorkerId("a"), number, False, True, [CLEARED] * 1000)):
        number += 1
    assert number * 1000 < MAX_OF_WORKER


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_message_that_would_take_the_index_long_is_dropped(num_blocks: int, num_changes: int) -> None:
    backlog = KvBacklog()
    assert not backlog.add(a_message("a", 1, MAX_MESSAGE_BLOCKS + 1 + num_blocks))
    assert not backlog.add(KvEvents(WorkerId("a"), 1, False, True, [CLEARED] * (MAX_MESSAGE_BLOCKS + num_changes)))
    assert WorkerId("a") not in backlog
    assert backlog.take_slice() == []


def test_largest_message_that_a_worker_sends_is_taken() -> None:
    single = [KvChange(KvTier.GPU, number % 2 == 0, [bytes(8)]) for number in range(MAX_BLOCKS_PER_MESSAGE)]
    assert KvBacklog().add(KvEvents(WorkerId("a"), 1, True, True, single))

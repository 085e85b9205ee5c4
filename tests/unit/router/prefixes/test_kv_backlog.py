"""KV events that wait for the Scheduler: bounded, in order, and taken in slices."""

from hypothesis import given
from hypothesis import strategies as st

from cluster.messages.ids import WorkerId
from cluster.messages.kv_events import KvChange, KvEvents, KvTier
from router.prefixes.kv_backlog import MAX_WAITING_BLOCKS, SLICE_BLOCKS, KvBacklog

WORKERS = [WorkerId(name) for name in "abc"]


def a_message(worker: WorkerId, number: int, num_blocks: int) -> KvEvents:
    return KvEvents(worker, number, False, True, [KvChange(KvTier.GPU, True, [bytes(8)] * num_blocks)])


@given(st.lists(st.tuples(st.sampled_from(WORKERS), st.integers(0, 5000)), max_size=30))
def test_every_message_comes_out_once_and_in_order_in_slices_of_bounded_size(
    sizes: list[tuple[WorkerId, int]],
) -> None:
    backlog = KvBacklog()
    sent = [a_message(worker, number, num_blocks) for number, (worker, num_blocks) in enumerate(sizes)]
    assert all(backlog.add(message) for message in sent)
    taken: list[KvEvents] = []
    while len(backlog):
        for worker in WORKERS:
            assert (worker in backlog) == any(message.worker == worker for message in sent[len(taken) :])
        part = backlog.take_slice()
        assert part
        assert sum(len(change.block_hashes or ()) for message in part[:-1] for change in message.changes) < SLICE_BLOCKS
        taken += part
    assert taken == sent
    assert backlog.take_slice() == []


def test_full_backlog_drops_messages_and_has_room_again_when_it_is_taken_from() -> None:
    backlog = KvBacklog()
    half = a_message(WORKERS[0], 1, MAX_WAITING_BLOCKS // 2)
    assert backlog.add(half)
    assert not backlog.add(half)
    assert len(backlog) == 1
    backlog.take_slice()
    assert backlog.add(half)


def test_messages_without_blocks_fill_the_backlog_too() -> None:
    backlog, message = KvBacklog(), a_message(WORKERS[0], 1, 0)
    assert not all(backlog.add(message) for _ in range(MAX_WAITING_BLOCKS))


def test_message_that_is_larger_than_the_backlog_is_taken_alone() -> None:
    backlog = KvBacklog()
    assert backlog.add(a_message(WORKERS[0], 1, MAX_WAITING_BLOCKS + 1))
    assert not backlog.add(a_message(WORKERS[0], 2, 1))
    assert len(backlog.take_slice()) == 1

"""What a worker tells the Scheduler of its caches, after what its engine tells it."""

import random

import pytest

from cluster.engine import kv_mirror
from cluster.engine.kv_mirror import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, EventOrder, KvMirror
from cluster.messages.ids import WorkerId
from cluster.messages.kv_events import KvChange, KvEvents, KvTier

WORKER = WorkerId("d0")


def keys(*numbers: int) -> list[bytes]:
    return [number.to_bytes(8, "big") for number in numbers]


def stored(*numbers: int, medium: str | None = "GPU") -> BlockStored:
    return BlockStored(list(numbers), medium)


def removed(*numbers: int, medium: str | None = "GPU") -> BlockRemoved:
    return BlockRemoved(list(numbers), medium)


def a_mirror(*events: BlockStored | BlockRemoved | AllBlocksCleared) -> KvMirror:
    """One that has said that it is there."""
    mirror = KvMirror(WORKER)
    mirror.take()
    mirror.apply(EventBatch(0.0, list(events)))
    return mirror


def told(mirror: KvMirror) -> list[tuple[KvTier, bool, list[bytes] | None]]:
    return [(c.tier, c.is_stored, c.block_hashes) for message in mirror.take() for c in message.changes]


def test_first_word_is_a_snapshot_of_nothing() -> None:
    assert KvMirror(WORKER).take() == [KvEvents(WORKER, 1, True, True, [])]


def test_changes_of_all_tiers_are_told_in_order_and_once() -> None:
    mirror = a_mirror(stored(1, 2), stored(3), stored(1, medium="CPU"), removed(2), stored(1, medium="STORAGE"))
    assert told(mirror) == [
        (KvTier.GPU, True, keys(1, 2, 3)),
        (KvTier.HOST, True, keys(1)),
        (KvTier.GPU, False, keys(2)),
        (KvTier.DISK, True, keys(1)),
    ]
    assert told(mirror) == []
    assert mirror.sent_through == 2


def test_block_of_a_medium_that_nobody_knows_does_not_count() -> None:
    assert told(a_mirror(stored(1, medium="TAPE"))) == []


def test_whole_hashes_are_told_by_their_last_bytes() -> None:
    mirror = KvMirror(WORKER)
    mirror.apply(EventBatch(0.0, [BlockStored([bytes(24) + b"12345678"])]))
    assert mirror.blocks(KvTier.GPU) == {b"12345678"}


def test_block_that_is_there_twice_goes_with_its_last_copy() -> None:
    mirror = a_mirror(stored(1), stored(1), removed(1))
    assert told(mirror) == [(KvTier.GPU, True, keys(1))]
    mirror.apply(EventBatch(0.0, [removed(1)]))
    assert told(mirror) == [(KvTier.GPU, False, keys(1))]
    mirror.apply(EventBatch(0.0, [removed(1)]))
    assert told(mirror) == []


def test_snapshot_holds_everything_and_what_was_to_be_told_goes_into_it() -> None:
    mirror = a_mirror(stored(1, 2), stored(3, medium="CPU"))
    mirror.want_snapshot()
    mirror.apply(EventBatch(0.0, [removed(2)]))
    (message,) = mirror.take()
    assert message == KvEvents(
        WORKER, 2, True, True, [KvChange(KvTier.GPU, True, keys(1)), KvChange(KvTier.HOST, True, keys(3))]
    )


def test_long_snapshot_goes_on_in_the_messages_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_mirror, "MAX_BLOCKS_PER_MESSAGE", 4)
    mirror = a_mirror(stored(*range(6)), stored(7, 8, 9, medium="CPU"))
    mirror.want_snapshot()
    messages = mirror.take()
    assert [(message.number, message.is_snapshot) for message in messages] == [(2, True), (3, False), (4, False)]
    assert [message.has_more for message in messages] == [True, True, False]
    sizes = [[len(change.block_hashes or []) for change in message.changes] for message in messages]
    assert sizes == [[4], [2, 2], [1]]


def test_more_than_can_be_kept_for_the_scheduler_becomes_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_mirror, "MAX_UNSENT_BLOCKS", 4)
    mirror = a_mirror(stored(1, 2, 3), removed(1), stored(4))
    (message,) = mirror.take()
    assert message.is_snapshot
    assert told(mirror) == []


def test_engine_that_empties_its_memory_keeps_its_tiers() -> None:
    mirror = a_mirror(stored(1), stored(1, medium="CPU"), AllBlocksCleared(), stored(2))
    assert mirror.blocks(KvTier.GPU) == set(keys(2))
    assert mirror.blocks(KvTier.HOST) == set(keys(1))


def test_engine_without_tiers_that_empties_its_memory_is_told_of_anew() -> None:
    mirror = a_mirror(stored(1), AllBlocksCleared(), stored(2))
    (message,) = mirror.take()
    assert (message.is_snapshot, message.changes) == (True, [KvChange(KvTier.GPU, True, keys(2))])


def test_emptied_caches_are_told_of_before_the_engine_says_so_and_its_older_words_do_not_count() -> None:
    mirror = a_mirror(stored(1), stored(1, medium="CPU"))
    mirror.take()
    mirror.expect_clear()
    mirror.clear()
    assert mirror.take() == [KvEvents(WORKER, 3, True, True, [])]
    mirror.apply(EventBatch(0.0, [stored(2)]))
    mirror.apply(EventBatch(0.0, [AllBlocksCleared(), stored(3), stored(2, medium="CPU")]))
    mirror.apply(EventBatch(0.0, [stored(3, medium="CPU")]))
    assert told(mirror) == [(KvTier.GPU, True, keys(3)), (KvTier.HOST, True, keys(3))]


def test_engine_that_says_first_that_all_is_emptied_is_believed() -> None:
    mirror = a_mirror(stored(1), stored(1, medium="CPU"))
    mirror.expect_clear()
    mirror.apply(EventBatch(0.0, [AllBlocksCleared(), stored(2)]))
    mirror.clear()
    assert (mirror.blocks(KvTier.GPU), mirror.blocks(KvTier.HOST)) == (frozenset(keys(2)), frozenset())
    mirror.apply(EventBatch(0.0, [stored(3)]))
    assert mirror.blocks(KvTier.GPU) == set(keys(2, 3))


def test_lost_events_make_it_unsure_until_all_is_emptied() -> None:
    mirror = a_mirror(stored(1))
    mirror.lose()
    assert mirror.take() == [KvEvents(WORKER, 2, True, False, [KvChange(KvTier.GPU, True, keys(1))])]
    mirror.apply(EventBatch(0.0, [stored(2)]))
    assert [message.is_exact for message in mirror.take()] == [False]
    mirror.apply(EventBatch(0.0, [AllBlocksCleared()]))
    assert mirror.take() == [KvEvents(WORKER, 4, True, True, [])]
    assert mirror.is_exact


@pytest.mark.parametrize("seed", range(20))
def test_batches_leave_in_order_whatever_way_they_come(seed: int) -> None:
    rng = random.Random(seed)
    order: EventOrder[int] = EventOrder()
    live = [number for number in range(50) if rng.random() < 0.7]
    left = []
    for number in rng.sample(live, len(live)) + list(range(50)):
        left += order.take(number, number)
    assert left == list(range(50))
    assert order.missing_from is None


def test_gap_is_known_and_can_be_given_up() -> None:
    order: EventOrder[str] = EventOrder()
    assert order.take(0, "a") == ["a"]
    assert order.take(3, "d") == order.take(5, "f") == []
    assert order.missing_from == 1
    assert order.take(1, "b") == ["b"]
    assert order.missing_from == 2
    assert order.give_up() == ["d", "f"]
    assert order.missing_from is None
    assert order.take(4, "e") == []
    assert order.take(6, "g") == ["g"]


def test_wait_for_a_replay_ends_when_too_much_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_mirror, "MAX_EARLY_BATCHES", 2)
    order: EventOrder[int] = EventOrder()
    for number in (1, 2):
        order.take(number, number)
    assert not order.is_hopeless
    order.take(3, 3)
    assert order.is_hopeless

"""The prefix index: what it says of workers after their KV events, and when it does not trust itself."""

from collections.abc import Sequence

from cluster.messages.ids import WorkerId
from cluster.messages.kv_events import KvChange, KvEvents, KvTier
from router.prefixes.expected_blocks import ExpectedBlocks
from router.prefixes.index import PREDICTION_TTL_S, Hit, PrefixIndex
from router.prefixes.runs import DENSE_BLOCKS, STRIDE_BLOCKS
from router.prefixes.snapshot_turns import MOST_TURNS, TURN_S
from router.prefixes.worker_bits import WorkerBits

A, B, C = WorkerId("a"), WorkerId("b"), WorkerId("c")


def blocks(*numbers: int) -> list[bytes]:
    return [number.to_bytes(8, "big") for number in numbers]


def stored(*numbers: int, tier: KvTier = KvTier.GPU) -> KvChange:
    return KvChange(tier, True, blocks(*numbers))


def removed(*numbers: int, tier: KvTier = KvTier.GPU) -> KvChange:
    return KvChange(tier, False, blocks(*numbers))


CLEARED = KvChange(KvTier.GPU, False, None)


def events(worker: WorkerId, number: int, *changes: KvChange, is_exact: bool = True) -> KvEvents:
    return KvEvents(worker, number, False, is_exact, list(changes))


def snapshot(worker: WorkerId, number: int, *changes: KvChange, is_exact: bool = True) -> KvEvents:
    return KvEvents(worker, number, True, is_exact, list(changes))


def an_index(*messages: KvEvents, max_blocks: int = 1000) -> PrefixIndex:
    index = PrefixIndex(max_blocks)
    for message in messages:
        index.handle(message, 0.0)
    index.validate()
    return index


def longest(index: PrefixIndex, numbers: Sequence[int], now: float = 0.0) -> dict[WorkerId, Hit]:
    index.validate()
    return index.longest(blocks(*numbers), now)


def test_hit_ends_at_the_first_block_that_the_worker_lacks() -> None:
    index = an_index(snapshot(A, 1, stored(1, 2, 4)), snapshot(B, 1, stored(1)))
    assert longest(index, [1, 2, 3, 4]) == {A: Hit(2, 2), B: Hit(1, 1)}


def test_worker_without_the_first_block_has_no_hit() -> None:
    assert longest(an_index(snapshot(A, 1, stored(2, 3))), [1, 2, 3]) == {}


def test_blocks_of_lower_tiers_count_apart() -> None:
    index = an_index(snapshot(A, 1, stored(1, 2), stored(2, 3, tier=KvTier.HOST), stored(4, tier=KvTier.DISK)))
    assert longest(index, [1, 2, 3, 4, 5]) == {A: Hit(4, 2)}


def test_block_that_is_back_in_memory_after_a_lower_tier_is_not_counted_as_leading() -> None:
    index = an_index(snapshot(A, 1, stored(1, tier=KvTier.HOST), stored(2)))
    assert longest(index, [1, 2]) == {A: Hit(2, 0)}


def test_evicted_block_stays_known_in_its_lower_tier() -> None:
    index = an_index(snapshot(A, 1, stored(1, 2), stored(1, tier=KvTier.HOST)), events(A, 2, removed(1, 2)))
    assert longest(index, [1, 2]) == {A: Hit(1, 0)}


def test_cleared_worker_holds_nothing_and_is_still_exact() -> None:
    index = an_index(snapshot(A, 1, stored(1)), snapshot(B, 1, stored(1)), events(A, 2, CLEARED, stored(2)))
    assert longest(index, [1]) == {B: Hit(1, 1)}
    assert longest(index, [2]) == {A: Hit(1, 1)}
    assert index.is_exact(A)


def test_unknown_worker_is_asked_for_a_snapshot_and_its_events_count_already() -> None:
    index = PrefixIndex()
    assert index.handle(events(A, 7, stored(1)), 0.0)
    assert longest(index, [1]) == {A: Hit(1, 1)}
    assert not index.is_exact(A)


def test_gap_degrades_until_a_snapshot_replaces_everything() -> None:
    index = an_index(snapshot(A, 1, stored(1)))
    assert index.handle(events(A, 3, stored(3)), 0.0)
    assert not index.is_exact(A)
    assert index.handle(events(A, 4, stored(4)), 0.0)
    assert not index.handle(snapshot(A, 5, stored(3)), 0.0)
    assert index.is_exact(A)
    assert longest(index, [1]) == longest(index, [4]) == {}
    assert longest(index, [3]) == {A: Hit(1, 1)}


def test_message_that_is_said_twice_or_too_late_changes_nothing() -> None:
    index = an_index(snapshot(A, 1, stored(1)), events(A, 2, removed(1)), snapshot(A, 1, stored(1)))
    assert longest(index, [1]) == {}
    assert index.is_exact(A)


def test_worker_that_is_unsure_itself_is_degraded_and_not_asked() -> None:
    index = an_index(snapshot(A, 1, stored(1)))
    assert not index.handle(events(A, 2, stored(2), is_exact=False), 0.0)
    assert not index.handle(events(A, 3), 0.0)
    assert not index.is_exact(A)
    index.handle(snapshot(A, 4, stored(1), is_exact=False), 0.0)
    assert not index.is_exact(A)
    index.handle(snapshot(A, 5, stored(1)), 0.0)
    assert index.is_exact(A)


def test_report_of_more_than_was_heard_asks_for_a_snapshot() -> None:
    index = an_index(snapshot(A, 1))
    assert not index.check(A, 1, 0.0)
    assert index.check(A, 2, 0.0)
    assert not index.is_exact(A)
    assert index.check(B, 0, 0.0)
    assert not index.check(B, None, 0.0)


def test_prediction_counts_as_memory_until_its_time_is_over() -> None:
    index = an_index()
    index.predict(A, blocks(1, 2), 5.0)
    assert longest(index, [1, 2, 3], 5.0 + PREDICTION_TTL_S - 0.1) == {A: Hit(2, 2)}
    assert longest(index, [1, 2, 3], 5.0 + PREDICTION_TTL_S) == {}
    assert index.num_blocks == 0
    assert not index.is_exact(A)


def test_prediction_goes_on_from_what_is_known() -> None:
    index = an_index(snapshot(A, 1, stored(1, 2), stored(3, tier=KvTier.HOST)), snapshot(B, 1, stored(1, 2, 3, 4)))
    index.predict(A, blocks(1, 2, 3), 0.0)
    index.predict(B, blocks(1, 2), 0.0)
    assert longest(index, [1, 2, 3, 4]) == {A: Hit(3, 3), B: Hit(4, 4)}


def test_stored_block_outlives_its_prediction() -> None:
    index = an_index(snapshot(A, 1))
    index.predict(A, blocks(1, 2), 0.0)
    index.handle(events(A, 2, stored(1)), 1.0)
    assert longest(index, [1, 2], 1.0) == {A: Hit(2, 2)}
    assert longest(index, [1, 2], PREDICTION_TTL_S) == {A: Hit(1, 1)}


def test_evicted_block_is_not_predicted_any_more() -> None:
    index = an_index(snapshot(A, 1))
    index.predict(A, blocks(1), 0.0)
    index.handle(events(A, 2, stored(1)), 1.0)
    index.handle(events(A, 3, removed(1)), 2.0)
    assert longest(index, [1], 2.0) == {}


def test_what_was_placed_before_a_snapshot_is_still_expected_after_it() -> None:
    index = an_index(snapshot(A, 1))
    index.predict(A, blocks(1, 2), 0.0)
    index.handle(snapshot(A, 2, stored(1)), 0.0)
    assert longest(index, [1, 2]) == {A: Hit(2, 2)}


def test_long_prompt_is_predicted_to_less_than_a_stride() -> None:
    index = an_index()
    index.predict(A, blocks(*range(1000)), 0.0)
    for length in (1, 63, 64, 65, 200, 999, 1000):
        other = [*range(length), *range(5000, 5100)]
        predicted = longest(index, other)[A].num_blocks
        assert length - STRIDE_BLOCKS < predicted <= length
    assert longest(index, range(1000)) == {A: Hit(1000, 1000)}


def test_forgotten_worker_holds_nothing_and_its_place_is_used_again() -> None:
    index = an_index(snapshot(A, 1, stored(1)), snapshot(B, 1, stored(1)))
    index.forget(A)
    assert longest(index, [1]) == {B: Hit(1, 1)}
    for turn in range(300):
        worker = WorkerId(f"w{turn}")
        index.handle(snapshot(worker, 1, stored(1, turn)), 0.0)
        assert longest(index, [1]) == {B: Hit(1, 1), worker: Hit(1, 1)}
        index.forget(worker)
    assert index.num_blocks < 10


def test_prediction_of_a_forgotten_worker_is_nobody_else_s() -> None:
    index = an_index()
    index.predict(A, blocks(1), 0.0)
    index.forget(A)
    index.predict(B, blocks(2), 1.0)
    assert longest(index, [1], 1.0) == {}
    index.predict(A, blocks(2), 1.0)
    assert longest(index, [2], PREDICTION_TTL_S + 0.5) == {A: Hit(1, 1), B: Hit(1, 1)}


def prompt(number: int, length: int = 10) -> list[int]:
    """The blocks of a prompt that shares none with other prompts."""
    return [*range(number * 1000, number * 1000 + length)]


def test_full_index_drops_what_was_not_used_for_longest() -> None:
    index = an_index(snapshot(A, 1), max_blocks=100)
    for number in range(1, 31):
        index.handle(events(A, number + 1, stored(*prompt(number))), 0.0)
    assert longest(index, prompt(30)) == longest(index, prompt(25)) == {A: Hit(10, 10)}
    assert longest(index, prompt(1)) == longest(index, prompt(15)) == {}


def test_prompt_that_is_looked_up_stays_and_so_does_one_that_is_stored_again() -> None:
    index = an_index(snapshot(A, 1, stored(*prompt(0))), snapshot(B, 1, stored(*prompt(1))), max_blocks=100)
    for number in range(2, 50):
        index.handle(events(A, number, stored(*prompt(number))), 0.0)
        index.handle(events(B, number, stored(*prompt(1))), 0.0)
        assert longest(index, prompt(0))[A] == Hit(10, 10)
        assert longest(index, prompt(1))[B] == Hit(10, 10)


def test_look_up_keeps_the_end_of_a_prompt_whose_beginning_others_have_just_used() -> None:
    """Prompts begin with the same blocks, as those with one system prompt do, and one of them goes on for long."""
    index = an_index(snapshot(A, 1, stored(*prompt(0, 2 * DENSE_BLOCKS))), max_blocks=4096)
    for number in range(2, 100):
        index.handle(events(A, number, stored(*prompt(number, 100))), 0.0)
        assert longest(index, prompt(0, DENSE_BLOCKS)) == {A: Hit(DENSE_BLOCKS, DENSE_BLOCKS)}
        assert longest(index, prompt(0, 2 * DENSE_BLOCKS)) == {A: Hit(2 * DENSE_BLOCKS, 2 * DENSE_BLOCKS)}


def test_first_blocks_of_a_prompt_stay_longest() -> None:
    """Also if the prompt alone is more than the index has room for."""
    index = an_index(snapshot(A, 1, stored(*prompt(0, 150))), max_blocks=100)
    kept = longest(index, prompt(0, 150))[A].num_blocks
    assert kept >= 75
    for number in range(2, 20):
        index.handle(events(A, number, stored(*prompt(number, 5))), 0.0)
        assert index.longest(blocks(*prompt(0, 20)), 0.0) == {A: Hit(20, 20)}, (
            "a look-up keeps the blocks that it asks for"
        )
    assert longest(index, prompt(0, 150))[A].num_blocks < kept


def test_worker_of_which_blocks_were_dropped_is_partial_until_there_is_room_and_it_is_asked() -> None:
    index = an_index(snapshot(A, 1, stored(*range(80))), max_blocks=100)
    assert index.is_exact(A)
    index.handle(snapshot(B, 1, stored(0, *range(1000, 1050))), 0.0)
    assert index.is_exact(B)
    assert not index.is_exact(A)
    assert longest(index, [0, 1000]) == {A: Hit(1, 1), B: Hit(2, 2)}
    assert not index.check(A, 1, 0.0), "there is no room for the rest"
    index.handle(events(B, 2, CLEARED), 0.0)
    index.handle(events(A, 2, removed(*range(30))), 0.0)
    assert index.check(A, 2, 0.0)
    assert not index.check(A, 2, 1.0), "it was asked"
    index.handle(snapshot(A, 3, stored(*range(30, 80))), 1.0)
    assert index.is_exact(A)
    assert not index.check(A, 3, 9.0)


def with_two_partial_workers() -> PrefixIndex:
    """A and B were cut for C, which is gone."""
    index = PrefixIndex(100)
    for worker in (A, B):
        index.handle(snapshot(worker, 1, stored(*prompt(0, 50))), 0.0)
    index.handle(snapshot(C, 1, stored(*prompt(1, 80))), 0.0)
    index.forget(C)
    for _ in range(5):
        index.handle(events(A, 2), 0.0)  # the sweep takes a few messages
    return index


def test_partial_workers_are_asked_one_at_a_time_and_slowly() -> None:
    index = with_two_partial_workers()
    assert not index.is_exact(A)
    assert not index.is_exact(B)
    asked = [index.check(worker, 1, 0.0) for worker in (A, B)]
    assert asked == [True, False]
    index.handle(snapshot(A, 3, stored(*prompt(0, 50))), 0.1)
    assert not index.check(B, 1, 0.1)
    assert index.check(B, 1, 2.0)


def test_few_workers_are_asked_for_a_snapshot_at_a_time_after_a_restart() -> None:
    index, now = PrefixIndex(), 0.0
    workers = [WorkerId(f"w{number}") for number in range(100)]
    waiting: set[WorkerId] = set()
    while len(waiting) < MOST_TURNS:
        waiting |= {worker for worker in workers if index.check(worker, 5, now)}
    assert len(waiting) == MOST_TURNS
    for _ in range(1000):
        assert len(waiting) <= MOST_TURNS
        if not waiting:
            break
        index.handle(snapshot(waiting.pop(), 6, stored(1)), now)
        waiting |= {worker for worker in workers if index.check(worker, 5, now)}
    assert all(index.is_exact(worker) for worker in workers)


def test_worker_that_does_not_send_its_snapshot_leaves_its_turn_to_others() -> None:
    index = PrefixIndex()
    silent = [WorkerId(f"w{number}") for number in range(MOST_TURNS)]
    assert all(index.check(worker, 1, 0.0) for worker in silent)
    assert not index.check(A, 1, 0.0)
    assert not index.check(silent[0], 1, TURN_S - 0.1), "it was asked"
    assert index.check(A, 1, TURN_S)
    index.forget(A)
    assert index.check(B, 1, TURN_S)


def test_worker_whose_snapshot_never_ends_keeps_no_partial_worker_waiting() -> None:
    index = PrefixIndex(100)
    index.handle(snapshot(A, 1, stored(*prompt(0, 50))), 0.0)
    index.handle(snapshot(C, 1, stored(*prompt(1, 80))), 0.0)
    index.forget(C)
    for _ in range(5):
        index.handle(events(A, 2), 0.0)
    assert not index.is_exact(A)
    endless = [WorkerId(f"w{number}") for number in range(MOST_TURNS)]
    assert all(index.check(worker, 0, 0.0) for worker in endless)
    for number in range(1, 10):
        for worker in endless:
            index.handle(KvEvents(worker, number, number == 1, True, [stored(1)], True), 0.1 * number)
    assert index.check(A, 2, 1.0)
    index.handle(snapshot(A, 3, stored(*prompt(0, 50))), 1.0)
    assert index.is_exact(A)


def test_partial_worker_whose_snapshot_never_ends_keeps_no_other_one_waiting_for_long() -> None:
    index = with_two_partial_workers()
    assert index.check(A, 2, 0.0)
    for number in range(3, 10):
        index.handle(KvEvents(A, number, number == 3, True, [stored(1)], True), number * TURN_S / 10)
    assert not index.check(B, 1, TURN_S - 0.1)
    assert index.check(B, 1, TURN_S)


def test_worker_is_exact_when_the_last_part_of_its_snapshot_is_here() -> None:
    parts = [
        KvEvents(A, 1, True, True, [stored(1)], True),
        KvEvents(A, 2, False, True, [stored(2)], True),
        KvEvents(A, 3, False, True, [stored(3)]),
    ]
    index = PrefixIndex()
    for part in parts:
        assert not index.is_exact(A)
        index.handle(part, 0.0)
    assert index.is_exact(A)


def test_predictions_are_bounded_and_the_oldest_go_first() -> None:
    bits = WorkerBits()
    predictions = ExpectedBlocks(bits, max_marks=100)
    for start in range(0, 1000, 10):
        predictions.add(bits.of(A), blocks(*range(start, start + 10)), 0.0)
        predictions.validate()
    assert predictions.longest(blocks(*range(10)), 0.0) == []
    assert predictions.longest(blocks(*range(990, 1000)), 0.0) == [(10, bits.of(A))]


def test_marks_that_expire_together_end_over_several_calls_and_their_worker_keeps_its_bit_until_then() -> None:
    bits = WorkerBits()
    predictions = ExpectedBlocks(bits)
    bit = bits.of(A)
    for start in range(0, 5000, 10):
        predictions.add(bit, blocks(*range(start, start + 10)), 0.0)
    bits.retire(A)
    predictions.retire(bit)
    last, num_calls = blocks(*range(4990, 5000)), 0
    while predictions.longest(last, PREDICTION_TTL_S):
        predictions.validate()
        assert bits.of(WorkerId(f"new{num_calls}")) != bit, "marks of the worker that is gone have this bit"
        num_calls += 1
    assert 3 <= num_calls <= 5
    assert bits.of(B) == bit

"""Which worker a conversation stays on, and whom a common beginning draws: what a prefix hit is worth to placement."""

from collections import Counter

import pytest

from cluster.messages.ids import Path, RequestId, SloClass, WorkerId
from cluster.messages.kv_events import KvChange, KvEvents, KvTier
from cluster.messages.placement import Placement
from cluster.messages.scheduler_events import FirstToken
from tests.unit.clusters import a_cluster, ask, decoding, ended, prefilled, put, report_all

PAIR, ALONE = Path.PREFILL_DECODE, Path.DECODE


def test_a_thousand_requests_that_share_one_block_are_spread() -> None:
    state = a_cluster(8, 2)
    shared = b"\0" * 8
    used: Counter[WorkerId | None] = Counter()
    for number in range(1000):
        hashes = [shared, *(number.to_bytes(4, "big") + block.to_bytes(4, "big") for block in range(1, 440))]
        request = ask(f"r{number}", 7040, block_hashes=hashes, path=Path.PREFILL_DECODE, max_output_tokens=8)
        placed = state.place(request, 1.0 + number / 1000)
        assert isinstance(placed, Placement)
        used[placed.prefill] += 1
        if number % 100 == 99:
            report_all(state, 1.0 + number / 1000)
    assert max(used.values()) <= 1.5 * 1000 / 8


def test_next_turn_of_a_chat_goes_to_the_worker_that_holds_it() -> None:
    state = a_cluster(2, 4)
    workers = set()
    for turn in range(1, 6):
        hashes = [block.to_bytes(8, "big") for block in range(turn * 100)]
        placed = put(state, ask(f"turn{turn}", turn * 1600 + 10, block_hashes=hashes), float(turn))
        workers.add(placed.generating)
        state.handle(FirstToken(request_id=RequestId(f"turn{turn}")), turn + 0.2)
        ended(state, f"turn{turn}", turn + 0.5, num_output_tokens=20)
        report_all(state, turn + 0.5)
    assert len(workers) == 1


@pytest.mark.parametrize(("busy", "idle"), [("d0", "d1"), ("d1", "d0")])
@pytest.mark.parametrize(("num_own", "keeps"), [(10, False), (90, True)], ids=["beginning", "next turn"])
def test_worker_keeps_a_conversation_and_no_beginning_that_others_hold_as_well(
    busy: str, idle: str, num_own: int, keeps: bool
) -> None:
    """In both cases the other worker is a little cheaper."""
    state = a_cluster(0, 2)
    shared, own = ([f"{what}{number:5}".encode() for number in range(100)] for what in ("all", "own"))
    for worker, held in ((busy, [*shared, *own[:num_own]]), (idle, shared)):
        state.handle_kv_events(KvEvents(WorkerId(worker), 1, True, True, [KvChange(KvTier.GPU, True, held)]), 0.0)
    for number, (worker, num_prompt) in enumerate([(busy, 1500), (busy, 1500), (idle, 200)]):
        others = frozenset({WorkerId("d0"), WorkerId("d1")} - {WorkerId(worker)})
        put(state, ask(f"r{number}", num_prompt, excluded=others), 1.0)
    placed = put(state, ask("next", 3200, block_hashes=[*shared, *own]), 1.0)
    assert placed.decode == (busy if keeps else idle)


@pytest.mark.parametrize(("busy", "idle"), [("p0", "p1"), ("p1", "p0")])
@pytest.mark.parametrize(("num_own", "keeps"), [(10, False), (90, True)], ids=["beginning", "next turn"])
def test_prefill_worker_keeps_a_conversation_whoever_decodes_it(
    busy: str, idle: str, num_own: int, keeps: bool
) -> None:
    """As above, where the decode worker holds nothing."""
    state = a_cluster(2, 1)
    shared, own = ([f"{what}{number:5}".encode() for number in range(100)] for what in ("all", "own"))
    for worker, held in ((busy, [*shared, *own[:num_own]]), (idle, shared)):
        state.handle_kv_events(KvEvents(WorkerId(worker), 1, True, True, [KvChange(KvTier.GPU, True, held)]), 0.0)
    put(state, ask("before", 2000, path=PAIR, excluded=frozenset({WorkerId(idle)})), 1.0)
    placed = put(state, ask("next", 3200, path=PAIR, block_hashes=[*shared, *own]), 1.0)
    assert placed.prefill == (busy if keeps else idle)


def test_prefill_worker_keeps_a_conversation_though_others_would_begin_sooner() -> None:
    def prefill_worker(num_queued: int) -> WorkerId | None:
        state = a_cluster(5, 1)
        hashes = [block.to_bytes(8, "big") for block in range(200)]
        held = [KvChange(KvTier.GPU, True, hashes[:190])]
        state.handle_kv_events(KvEvents(WorkerId("p0"), 1, True, True, held), 0.0)
        others = frozenset(WorkerId(f"p{number}") for number in range(1, 5))
        for number in range(num_queued):
            put(state, ask(f"queued{number}", 2000, path=PAIR, excluded=others), 1.0)
        return put(state, ask("next", 3210, path=PAIR, block_hashes=hashes), 1.0).prefill

    assert [prefill_worker(num_queued) == "p0" for num_queued in (0, 2, 3, 6)] == [True, True, True, False]


def test_chat_is_not_computed_again_elsewhere_for_a_few_milliseconds() -> None:
    state = a_cluster(1, 1)
    for number in range(8):  # path D seems a little slow
        report_all(state, 1.0 + number)
        placed = put(state, ask(f"r{number}", 200, path=Path.DECODE), 1.0 + number)
        assert placed.predicted is not None
        ended(state, f"r{number}", 1.5 + number, ttft_s=placed.predicted.ttft_s + 0.1, num_output_tokens=20)
    hashes = [block.to_bytes(8, "big") for block in range(100)]
    report_all(state, 10.0)
    put(state, ask("turn1", 1600, path=Path.DECODE, block_hashes=hashes), 10.0)
    ended(state, "turn1", 11.0, num_output_tokens=20)
    placed = put(state, ask("turn2", 1650, block_hashes=hashes), 11.1)
    assert placed.path is ALONE
    assert min(placed.considered, key=lambda option: option.ttft_s).path is PAIR


@pytest.mark.parametrize(("num_new", "path"), [(400, ALONE), (1600, PAIR)])
def test_conversation_is_not_handed_over_again_for_a_few_milliseconds(num_new: int, path: Path) -> None:
    """After a handoff both workers hold it. The prefill worker computes the next turn sooner, as it decodes nothing."""
    state = a_cluster(1, 1)
    hashes = [block.to_bytes(8, "big") for block in range(200)]
    put(state, ask("turn1", 3200, path=PAIR, block_hashes=hashes), 1.0)
    prefilled(state, "turn1", 1.2)
    ended(state, "turn1", 1.5, num_output_tokens=20)
    for number in range(30):
        decoding(state, f"running{number}", 1000, "d0", 1.6)
    report_all(state, 2.0)
    placed = put(state, ask("turn2", 3200 + num_new, block_hashes=hashes), 2.1)
    assert placed.path is path
    sooner = min(placed.considered, key=lambda option: option.ttft_s)
    assert sooner.path is not ALONE


def test_conversation_leaves_a_worker_that_is_much_busier() -> None:
    state = a_cluster(1, 2)
    hashes = [block.to_bytes(8, "big") for block in range(20)]
    first = put(state, ask("turn1", 320, block_hashes=hashes), 1.0)
    for number in range(150):
        decoding(state, f"running{number}", 2000, first.generating, 1.0)
    assert put(state, ask("turn2", 330, block_hashes=hashes), 1.1).generating != first.generating


def test_prefix_that_everybody_has_does_not_draw_everybody_to_one_worker() -> None:
    state = a_cluster(4, 4)
    used: Counter[WorkerId | None] = Counter()
    hashes = [block.to_bytes(8, "big") for block in range(250)]
    for number in range(200):
        now = 1.0 + number / 50
        placed = put(state, ask(f"r{number}", 4010, block_hashes=hashes, max_output_tokens=200), now)
        used[placed.generating] += 1
        state.handle(FirstToken(request_id=RequestId(f"r{number}")), now + 0.01)
        if number % 50 == 49:
            report_all(state, now)
    assert max(used.values()) <= 0.7 * 200


def test_prefix_does_not_draw_to_a_worker_that_stays_slow_while_another_is_about_to_be_free() -> None:
    state = a_cluster(1, 2, is_plain=True)
    for number in range(80):
        decoding(state, f"a{number}", 3000, "d0", 1.0, max_output_tokens=2000, slo_class=SloClass.BATCH)
    for number in range(79):
        decoding(state, f"b{number}", 3000, "d1", 1.0, max_output_tokens=8, slo_class=SloClass.BATCH)
    hashes = [block.to_bytes(8, "big") for block in range(101)]
    put(
        state,
        ask("first", 1600, block_hashes=hashes[:100], excluded=frozenset({WorkerId("d1")}), path=Path.DECODE),
        1.0,
    )
    state.handle(FirstToken(request_id=RequestId("first")), 1.0)
    ended(state, "first", 1.0)
    following = ask("next", 1616, block_hashes=hashes, tpot_s=0.0213, max_output_tokens=400, slo_class=SloClass.BATCH)
    assert put(state, following, 1.06).generating == "d1"

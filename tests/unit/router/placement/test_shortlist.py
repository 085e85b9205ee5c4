"""Pools that are too large for every worker to be priced: a placement looks at some of the workers first."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.messages.ids import Path, WorkerId
from cluster.messages.kv_events import KvChange, KvEvents, KvTier
from cluster.messages.placement import Placement
from router.placement.candidates import SHORTLIST, Candidates, Choice
from router.placement.goodput import goodput
from router.placement.placement_input import PlacementInput
from router.prediction.learned_latency import LatencyModels
from router.state import RouterState
from tests.expected import present
from tests.unit.clusters import SLO, a_report, ask, decoding, put

MANY = 4 * SHORTLIST


def a_wide_pool(number: int = MANY) -> RouterState:
    state = RouterState(SLO)
    for worker in range(number):
        state.handle(a_report(f"d{worker}"), 0.0)
    return state


def on(placement: Placement) -> WorkerId:
    return present(placement.decode)


def test_equal_workers_of_a_wide_pool_get_equally_many_requests() -> None:
    state = a_wide_pool()
    placed = Counter(on(put(state, ask(f"r{number}", 100), 0.0)) for number in range(2 * MANY))
    assert len(placed) == MANY
    assert max(placed.values()) <= 3


def test_worker_that_holds_the_prompt_is_found_in_a_wide_pool() -> None:
    state = a_wide_pool()
    blocks = [number.to_bytes(8, "big") for number in range(200)]
    for number, holder in enumerate(["d3", "d100", "d255"]):
        held = [bytes([number]) + block[1:] for block in blocks]
        state.handle_kv_events(KvEvents(WorkerId(holder), 1, True, True, [KvChange(KvTier.GPU, True, held)]), 0.0)
        assert on(put(state, ask(f"r{number}", 3200, block_hashes=held), 0.0)) == holder


def test_the_one_worker_with_room_is_found_however_wide_the_pool_is() -> None:
    state = a_wide_pool()
    idle = "d77"
    for number in range(MANY):
        if f"d{number}" != idle:
            state.handle(a_report(f"d{number}", num_running=2000), 0.0)
    assert on(put(state, ask("r", 100), 0.1)) == idle


@settings(max_examples=20, deadline=None)
@given(good=st.integers(0, MANY - 1))
def test_worker_that_harms_nobody_is_found_where_all_others_would(good: int) -> None:
    """The workers of the shortlist decode as many requests as their objectives bear."""
    state = a_wide_pool()
    for number in range(MANY):
        if number != good:
            state.handle(a_report(f"d{number}", num_running=1500, kv_cache_usage=0.97), 0.0)
    assert on(put(state, ask("r", 6_000), 0.1)) == f"d{good}"


def test_policy_without_predictions_gets_the_whole_pool() -> None:
    """So that rules that Baton is compared with choose among the same workers."""
    seen: list[int] = []

    def first(placement_input: PlacementInput, candidates: Candidates, models: LatencyModels) -> Choice:
        seen.append(len(candidates.decodes))
        return Choice(Path.DECODE, None, candidates.decodes[0], "the first one")

    state = RouterState(SLO, first)
    for worker in range(MANY):
        state.handle(a_report(f"d{worker}"), 0.0)
    put(state, ask("r", 100), 0.0)
    assert seen[-1] == MANY


def test_proved_link_is_found_in_a_wide_pool() -> None:
    """Each decode worker has a link to one of the prefill workers only, which may not be on the shortlist."""
    state = RouterState(SLO)
    for number in range(MANY):
        state.handle(a_report(f"p{number}", is_plain=True), 0.0)
    for number in range(8):
        state.handle(a_report(f"d{number}", {f"p{31 * number + 1}": None}, is_plain=True), 0.0)
    for number in range(8):
        decoding(state, f"busy{number}", 300, f"d{number}", 0.0)
    placed = put(state, ask("r", 1_500), 0.1)
    assert placed.path is Path.PREFILL_DECODE
    assert present(placed.prefill) == f"p{31 * int(on(placed)[1:]) + 1}"


def test_busy_workers_of_a_wide_pool_get_less_than_idle_ones() -> None:
    state = a_wide_pool()
    for number in range(MANY // 2):
        decoding(state, f"busy{number}", 8_000, f"d{number}", 0.0)
    placed = [on(put(state, ask(f"r{number}", 3_000), 0.1)) for number in range(MANY // 4)]
    assert all(int(worker[1:]) >= MANY // 2 for worker in placed)


def test_stale_pool_that_is_wide_is_not_looked_at_as_a_whole() -> None:
    """Reports are late where the Scheduler is overloaded, and a look at all workers would make them later."""
    seen: list[int] = []

    def watched(placement_input: PlacementInput, candidates: Candidates, models: LatencyModels) -> Choice | None:
        seen.append(len(candidates.decodes))
        return goodput(placement_input, candidates, models)

    state = RouterState(SLO, watched)
    for worker in range(MANY):
        state.handle(a_report(f"d{worker}"), 0.0)
    put(state, ask("fresh", 100), 0.0)
    stale = put(state, ask("stale", 100), 3.0)
    assert stale.predicted is None
    assert seen[-1] < 2 * SHORTLIST
    assert len(seen) == 2, "one look for each request"

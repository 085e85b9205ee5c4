import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.messages.ids import Path, RequestId, WorkerId
from cluster.messages.placement import Placement, PlacementRequest
from cluster.messages.scaling import LoadReading, ScalingAsk
from cluster.messages.scheduler_events import FirstToken, RequestClosed
from cluster.slo import SloConfig
from router.load.live_workers import RETIRING_S
from router.scaling.offered_load import SAMPLE_SIZE, OfferedLoad
from router.state import RouterState
from tests.unit.factories import a_decode_report, a_placement_request, a_prefill_report


def a_state(num_decode: int = 2) -> RouterState:
    state = RouterState()
    state.handle(a_prefill_report("p0"), now=0.0)
    for index in range(num_decode):
        state.handle(a_decode_report(f"d{index}", "p0"), now=0.0)
    return state


def ended(request_id: str, ttft_s: float = 0.1, tpot_s: float = 0.01, num_output: int | None = 30) -> RequestClosed:
    return RequestClosed(request_id=RequestId(request_id), num_output_tokens=num_output, ttft_s=ttft_s, tpot_s=tpot_s)


def read(state: RouterState, *retiring: str, now: float = 1.0) -> LoadReading:
    return state.load.read(ScalingAsk([WorkerId(worker) for worker in retiring]), "s", now)


def test_requests_count_when_they_are_asked_for_and_when_they_end() -> None:
    state = a_state()
    for number, closed in enumerate([ended("r0"), ended("r1", ttft_s=1e3), ended("r2", tpot_s=1e3)]):
        assert isinstance(state.place(a_placement_request(f"r{number}"), now=0.2 * number), Placement)
        state.handle(closed, now=1.0)
    state.place(a_placement_request("r3"), now=0.9)
    state.handle(ended("r3", num_output=None), now=1.0)  # its client has left
    reading = read(state)
    assert (reading.num_arrived, reading.num_good, reading.num_missed, reading.num_waiting) == (4, 1, 2, 0)
    assert [request.num_output for request in reading.sample[:3]] == [30, 30, 30]


@pytest.mark.parametrize(
    ("left_at", "ttft_s", "has_told", "attempt", "is_missed"),
    [
        (20.0, None, False, 1, True),  # no token came in time
        (0.5, None, False, 1, False),  # it was not due yet
        (20.0, 0.1, True, 1, False),  # the first token was in time
        (20.0, 10.0, True, 1, True),  # the first token was late
        (20.0, None, True, 1, False),  # another cell goes on with it
        (20.0, None, False, 2, False),  # the first token may have come in the first attempt
        (20.0, 10.0, False, 2, True),
    ],
)
def test_client_that_leaves_counts_as_missed_if_its_first_token_was_late(
    left_at: float, ttft_s: float | None, has_told: bool, attempt: int, is_missed: bool
) -> None:
    state = a_state()
    excluded = frozenset({WorkerId("d0")} if attempt > 1 else ())
    request = a_placement_request("r", attempt=attempt, excluded=excluded, age_s=0.4)
    assert isinstance(state.place(request, now=0.0), Placement)
    if has_told:
        state.handle(FirstToken(request_id=request.request_id), now=0.2)
    state.handle(RequestClosed(request_id=request.request_id, ttft_s=ttft_s), now=left_at)
    reading = read(state, now=left_at)
    assert (reading.num_good, reading.num_missed) == (0, int(is_missed))


def test_first_token_is_due_by_the_time_of_arrival_and_not_of_placement() -> None:
    state = a_state()
    request = a_placement_request("r", age_s=0.4)
    state.place(request, now=0.0)
    (charge,) = state._charges
    assert charge.due_at == pytest.approx(charge.slo_ttft_s - 0.4)
    state.handle(RequestClosed(request_id=request.request_id), now=charge.due_at + 0.01)
    assert read(state, now=charge.due_at + 0.01).num_missed == 1


def test_prefix_hits_are_in_the_sample_as_the_placement_has_found_them() -> None:
    load = OfferedLoad(SloConfig())
    placement = Placement(path=Path.DECODE, prefill=None, decode=WorkerId("d0"), why="", num_hit_tokens=64)
    for now, (name, num_prompt) in enumerate((("part", 100), ("whole", 64))):
        load.asked(a_placement_request(name, num_prompt_tokens=num_prompt), float(now))
        load.answered(RequestId(name), placement)
    load.asked(a_placement_request("waits", num_prompt_tokens=100), 2.0)
    assert [request.num_cached for request in load.sample()] == [64, 63, 0]  # an engine computes the last token anew


def test_second_request_with_a_prompt_has_hits_in_the_sample() -> None:
    state = a_state(num_decode=1)
    hashes = [b"block %d" % number for number in range(4)]
    for number in range(2):
        request = a_placement_request(f"r{number}", num_prompt_tokens=70, block_hashes=hashes, path=Path.DECODE)
        state.place(request, now=0.2 * number)
    assert [request.num_cached for request in read(state).sample] == [0, 64]


def test_kv_share_is_what_requests_have_reserved_of_the_memory_that_is_known() -> None:
    state = RouterState()
    state.handle(a_prefill_report("p0"), now=0.0)
    for name, tokens in (("d0", 10_000), ("d1", 30_000), ("d2", 0)):
        report = a_decode_report(name, "p0")
        shape = msgspec.structs.replace(report.shape, kv_capacity_tokens=tokens)
        max_requests = 0 if name == "d2" else report.max_requests
        state.handle(msgspec.structs.replace(report, shape=shape, max_requests=max_requests), now=0.0)
    assert read(state).decode.kv_share == 0.0
    for number in range(2):
        request = a_placement_request(f"r{number}", num_prompt_tokens=3000, max_output_tokens=1000, path=Path.DECODE)
        assert isinstance(state.place(request, now=0.1), Placement)
    reserved = sum(charge.kv_tokens for charge in state._charges)
    assert 6000 < reserved <= 8000
    assert read(state).decode.kv_share == reserved / 40_000
    assert read(state).prefill.kv_share == 0.0


def test_request_that_is_placed_anew_does_not_count_again() -> None:
    state = a_state()
    state.place(a_placement_request("r"), now=0.0)
    state.place(a_placement_request("r", attempt=2, excluded=frozenset({WorkerId("d0")})), now=0.1)
    assert read(state).num_arrived == 1


def test_refused_requests_count_as_asked_for_and_missed() -> None:
    state = a_state()
    refused = state.place(a_placement_request("r"), 0.0, turns_away=True)
    assert refused is not None
    reading = read(state)
    assert (reading.num_arrived, reading.num_missed) == (1, 1)


def test_retiring_worker_gets_no_requests_until_it_is_no_longer_named() -> None:
    state = a_state()
    read(state, "d0", now=0.0)
    placed = [state.place(a_placement_request(f"r{number}"), now=0.1) for number in range(8)]
    assert {answer.decode for answer in placed if isinstance(answer, Placement)} == {"d1"}
    assert read(state, now=0.2).decode.open_requests == {"d0": 0, "d1": 8}
    placed = [state.place(a_placement_request(f"s{number}"), now=0.3) for number in range(8)]
    assert WorkerId("d0") in {answer.decode for answer in placed if isinstance(answer, Placement)}


def test_retiring_worker_gets_what_no_other_worker_takes() -> None:
    state = RouterState()
    state.handle(a_prefill_report("p0"), now=0.0)
    for name in ("d0", "d1"):
        state.handle(msgspec.structs.replace(a_decode_report(name, "p0"), max_requests=2), now=0.0)
    read(state, "d0", now=0.0)
    placed = [state.place(a_placement_request(f"r{number}", path=Path.DECODE), now=0.1) for number in range(4)]
    assert sorted(answer.decode or "" for answer in placed if isinstance(answer, Placement)) == ["d0", "d0", "d1", "d1"]


def test_requests_of_a_burst_are_as_likely_in_the_sample_as_others() -> None:
    load, now, number = OfferedLoad(SloConfig()), 0.0, 0
    for _ in range(600):  # each second a burst of 90 long prompts, and ten short ones between
        lengths = [*([8000] * 90), *([20] * 10)]
        for length in lengths:
            now += 0.0001 if length == 8000 else 0.099
            load.asked(a_placement_request(f"r{number}", num_prompt_tokens=length), now)
            number += 1
    share = sum(request.num_prompt == 8000 for request in load.sample()) / SAMPLE_SIZE
    assert 0.8 < share <= 1.0


def test_retirement_ends_if_nobody_repeats_it() -> None:
    state = a_state()
    read(state, "d0", now=0.0)
    later = RETIRING_S + 1.0
    for report in (a_prefill_report("p0"), a_decode_report("d0", "p0"), a_decode_report("d1", "p0")):
        state.handle(report, later)
    placed = [state.place(a_placement_request(f"r{number}"), now=later) for number in range(8)]
    assert WorkerId("d0") in {answer.decode for answer in placed if isinstance(answer, Placement)}


def test_only_workers_still_get_requests_while_all_of_them_retire() -> None:
    state = a_state(num_decode=1)
    read(state, "d0", "p0", now=0.0)
    assert isinstance(state.place(a_placement_request("r"), now=0.1), Placement)


def test_pool_without_workers_keeps_the_figures_of_its_last_engines() -> None:
    state = a_state()
    before = read(state).prefill.engine
    assert before is not None
    later = 100.0
    state.handle(a_decode_report("d0", ""), later)
    reading = read(state, now=later)
    assert reading.prefill.open_requests == {}
    assert reading.prefill.engine == before


def test_objectives_of_the_sample_are_those_that_count() -> None:
    load = OfferedLoad(SloConfig())
    load.asked(a_placement_request("a"), 0.0)
    load.asked(a_placement_request("b", ttft_s=0.2, tpot_s=0.01), 1.0)
    plain, own = load.sample()
    assert (plain.ttft_s, plain.ttft_per_prefill, plain.tpot_s) == (1.0, 3.0, 0.05)
    assert (own.ttft_s, own.ttft_per_prefill, own.tpot_s) == (0.2, 0.0, 0.01)


@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from(["ask", "end", "leave"])), max_size=200))
def test_invariants_hold_whatever_comes(steps: list[tuple[int, str]]) -> None:
    state, now = a_state(), 0.0
    for number, step in steps:
        now += 0.02
        match step:
            case "ask":
                state.place(a_placement_request(f"r{number}"), now)
            case "end":
                state.handle(ended(f"r{number}"), now)
            case "leave":
                state.handle(ended(f"r{number}", num_output=None), now)
        state.validate()


def test_sample_is_bounded_and_holds_the_newest() -> None:
    load = OfferedLoad(SloConfig())
    for number in range(3 * SAMPLE_SIZE):
        load.asked(PlacementRequest(request_id=RequestId(f"r{number}"), num_prompt_tokens=number + 1), float(number))
        load.validate()
    sample = load.sample()
    assert [request.num_prompt for request in sample] == list(range(2 * SAMPLE_SIZE + 1, 3 * SAMPLE_SIZE + 1))

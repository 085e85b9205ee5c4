"""Numbers that a worker or a session measured wrongly, or that are not numbers: placement goes on for everybody."""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.messages.ids import RequestId, SloClass, WorkerId
from cluster.messages.placement import Placement
from cluster.messages.reports import EngineShape, StepSample, TransferSample, WorkerLoad, WorkerReport
from cluster.messages.scheduler_events import EngineLostWith, RequestClosed, WorkerLeft
from cluster.messages.transport import LinkSpeed
from router.state import RouterState
from tests.unit.factories import a_decode_report, a_placement_request, a_prefill_report

NUMBERS = st.sampled_from([0, 1, -1, 7, 300_000, 1 << 40, 1 << 62, -(1 << 62)])
FLOATS = st.sampled_from([0.0, -1.0, 1e-300, 1e-9, 0.02, 5.0, 1e9, 1e300, float("inf"), float("-inf"), float("nan")])
WORKERS = st.sampled_from([WorkerId(name) for name in ("p0", "p1", "d0", "d1")])
NAMES = st.sampled_from([RequestId(f"r{number}") for number in range(6)])


def structs(of: Any, **fields: Any) -> st.SearchStrategy[Any]:
    return st.builds(of, **fields)


LOADS = structs(WorkerLoad, num_running=NUMBERS, num_waiting=NUMBERS, kv_cache_usage=FLOATS, num_open=NUMBERS)
SHAPES = structs(
    EngineShape,
    kind=st.sampled_from(["", "one"]),
    kv_capacity_tokens=NUMBERS,
    block_size=NUMBERS,
    max_step_tokens=NUMBERS,
    kv_bytes_per_token=NUMBERS,
)
STEPS = structs(
    StepSample, num_prefill=NUMBERS, attended=NUMBERS, num_decoding=NUMBERS, context_tokens=NUMBERS, seconds=FLOATS
)
TRANSFERS = structs(TransferSample, prefill=WORKERS, num_tokens=NUMBERS, seconds=FLOATS)
LINKS = structs(LinkSpeed, latency_s=FLOATS, bytes_per_s=FLOATS)


@st.composite
def odd_reports(draw: st.DrawFn) -> WorkerReport:
    worker = draw(WORKERS)
    report = a_prefill_report(worker) if worker.startswith("p") else a_decode_report(worker, "p0 p1")
    odd = {
        "load": LOADS,
        "shape": SHAPES,
        "max_requests": NUMBERS,
        "steps": st.lists(STEPS, max_size=3),
        "transfers": st.lists(TRANSFERS, max_size=3),
        "links": st.dictionaries(WORKERS, st.none() | LINKS, max_size=2),
        "requests": st.none() | st.lists(NAMES, max_size=3),
    }
    chosen = draw(st.sets(st.sampled_from(sorted(odd)), max_size=3))
    return msgspec.structs.replace(report, **{name: draw(odd[name]) for name in sorted(chosen)})


EVENTS = st.one_of(
    structs(
        RequestClosed,
        request_id=NAMES,
        num_output_tokens=st.none() | NUMBERS,
        ttft_s=st.none() | FLOATS,
        tpot_s=st.none() | FLOATS,
    ),
    structs(EngineLostWith, digest=st.sampled_from([b"a", b"b"]), worker=WORKERS, num_engines_lost=NUMBERS),
    structs(WorkerLeft, worker=WORKERS, engine_silent_s=st.none() | FLOATS),
)
REQUESTS = structs(
    a_placement_request,
    request_id=NAMES,
    num_prompt_tokens=st.sampled_from([1, 2000, 100_000]),
    max_output_tokens=st.sampled_from([None, 1, 100]),
    slo_class=st.sampled_from(list(SloClass)),
    digest=st.sampled_from([b"a", b"b", b"c"]),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.one_of(odd_reports(), odd_reports(), EVENTS, REQUESTS), max_size=25))
def test_odd_number_keeps_nobody_from_an_answer(history: list[Any]) -> None:
    state, now = RouterState(), 0.0
    for worker in ("p0", "p1"):
        state.handle(a_prefill_report(worker), now)
    for worker in ("d0", "d1"):
        state.handle(a_decode_report(worker, "p0 p1"), now)
    for one in history:
        now += 0.01
        if isinstance(one, WorkerReport | RequestClosed | EngineLostWith | WorkerLeft):
            state.handle(one, now)
        else:
            state.place(one, now)
        state.decide(now)
        state.next_decision_at()
        state.view(now)
        state.queued(now)
    state.validate()
    for number in range(6):
        state.handle(RequestClosed(request_id=RequestId(f"r{number}")), now)
    now += 1000.0  # what was learnt wrongly is outlived
    state.decide(now)
    for worker in ("p2", "d2"):
        report = a_prefill_report(worker) if worker.startswith("p") else a_decode_report(worker, "p2")
        state.handle(report, now)
    assert isinstance(state.place(a_placement_request("plain"), now), Placement)

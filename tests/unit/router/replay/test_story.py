"""Stories of requests, as `baton replay --explain` tells them."""

from collections.abc import Callable
from typing import Any

import msgspec

from cluster.messages.ids import IngressId, Path, RequestId, WorkerId
from cluster.messages.reports import EngineShape, WorkerReport
from cluster.messages.scheduler_events import (
    EngineLostWith,
    FirstToken,
    PrefillDone,
    RequestClosed,
    WorkerLeft,
    WorkerLost,
)
from cluster.slo import SloConfig
from router.placement.goodput import goodput
from router.recording.recorded_state import RecordedState
from router.replay.explainer import Explainer
from router.replay.story import story
from router.state import RouterState
from tests.unit.factories import a_decode_report, a_placement_request, a_prefill_report
from tests.unit.router.recording.memory_log import MemoryLog
from tests.unit.router.recording.test_frames import HEADER

ONE, R = IngressId("one"), RequestId("r")
SHAPE = EngineShape(kind="k", kv_capacity_tokens=300_000, kv_bytes_per_token=100_000, has_short_steps=True)


def told(happen: Callable[[RecordedState], None], wanted: str = "r") -> list[str]:
    """The story of a request, from the log of what happens."""
    log = MemoryLog()
    happen(RecordedState(RouterState(SloConfig()), log))
    explainer = Explainer(wanted, goodput)
    explainer.file(HEADER)
    state = RouterState(SloConfig(), explainer.policy)
    stepper = explainer.begins(HEADER, state, is_exact=True)
    for record in log.as_read():
        explainer.record(record, 0.0)
        stepper.apply(record)
    return [line for facts in explainer.found.values() for line in story(facts, lambda at: f"{at:.2f}")]


def has(lines: list[str], *parts: str) -> None:
    assert [part for part in parts if not any(part in line for line in lines)] == [], "\n".join(lines)


def report(state: RecordedState, report: WorkerReport, now: float = 0.0, **fields: Any) -> None:
    full = msgspec.structs.replace(report, shape=SHAPE, **fields)
    state.handle(full, now)
    state.reply_to(full, now)


def two_and_two(state: RecordedState) -> None:
    for worker in ("p0", "p1"):
        report(state, a_prefill_report(worker))
    for worker in ("d0", "d1"):
        report(state, a_decode_report(worker, "p0"))


def test_request_that_finishes_late_by_its_prompt() -> None:
    def happen(state: RecordedState) -> None:
        two_and_two(state)
        state.place(
            a_placement_request("r", num_prompt_tokens=3000, path=Path.PREFILL_DECODE, http_request="x-1"), 0.1, ONE
        )
        state.place(a_placement_request("s", num_prompt_tokens=3000, path=Path.PREFILL_DECODE), 0.2, ONE)
        state.handle(PrefillDone(request_id=R), 4.1, ONE)
        state.handle(FirstToken(request_id=R), 4.2, ONE)
        closed = RequestClosed(request_id=R, num_output_tokens=9, ttft_s=4.1, tpot_s=0.02)
        state.handle(closed, 5.0, ONE)

    for wanted in ("r", "x-1"):
        lines = told(happen, wanted)
        has(
            lines,
            "Request r (x-request-id x-1): class standard, 3000 prompt tokens",
            "0.10  placement 1 is asked for by ingress one",
            "* path P->D on p0 and d",
            "no handoff, link not proved: p1->d",
            "prefill done, 4.000 s later",
            "first token, 0.100 s later",
            "before its first token, 1 others were placed on its workers",
            "finished with 9 output tokens",
            "TTFT 4.100 s, predicted",
            "4.000 s for the prompt with those before it",
            "perhaps because 1 requests were placed beside it",
        )
        assert lines[-1].startswith("Where the time went: 4.100 s to the first token, of which 0.000 s in the")


def test_workers_that_cannot_be_chosen_are_named_with_their_reasons() -> None:
    def happen(state: RecordedState) -> None:
        two_and_two(state)
        report(state, a_decode_report("d2", "p0"))
        report(state, a_decode_report("d3", "p0"))
        report(state, a_decode_report("d4", "p0"), max_requests=1)
        state.place(
            a_placement_request("fills", path=Path.DECODE, excluded=frozenset({"d0", "d1", "d2", "d3"})), 0.0, ONE
        )
        state.handle(WorkerLost(worker=WorkerId("d1")), 0.0, ONE)
        state.handle(WorkerLeft(worker=WorkerId("d2"), engine_silent_s=3.0), 0.0)
        request = a_placement_request("r", path=Path.DECODE, excluded=frozenset({"d0"}), attempt=2)
        state.place(request, 0.1, ONE)

    lines = told(happen)
    has(
        lines,
        "left out: d0, excluded: this request failed there",
        "left out: d1, hold: ingress one could not reach it lately",
        "left out: d2, gone: its engine had not answered for 3.0 s",
        "left out: d4, full",
        "path D on d3",
        "The log does not have its end.",
    )


def test_request_that_is_refused_without_workers_and_in_quarantine() -> None:
    def happen(state: RecordedState) -> None:
        state.place(a_placement_request("r", has_other_cell=True), 0.0, ONE)
        two_and_two(state)
        for worker in ("d0", "d1"):
            lost = EngineLostWith(digest=b"d", worker=WorkerId(worker), num_engines_lost=2)
            state.handle(lost, 0.1, ONE)
        state.place(a_placement_request("r", digest=b"d", attempt=2), 0.2, ONE)

    lines = told(happen)
    has(lines, "refused (no worker): no worker can be reached", "refused (quarantine)", "it was never placed")


def test_request_that_waits_and_whose_worker_dies() -> None:
    def happen(state: RecordedState) -> None:
        state.place(a_placement_request("r"), 0.0, ONE)
        report(state, a_decode_report("d0", ""), 2.0)
        state.decide(2.0)
        state.handle(WorkerLeft(worker=WorkerId("d0")), 3.0)
        state.place(a_placement_request("r", attempt=2, excluded=frozenset({"d0"}), age_s=3.0), 3.0, ONE)
        report(state, a_decode_report("d1", ""), 4.0)
        state.decide(4.0)
        closed = RequestClosed(request_id=R, num_engines_lost=1)
        state.handle(closed, 5.0, ONE)

    lines = told(happen)
    has(
        lines,
        "placed after 2.000 s in the queue: path D on d0",
        "worker d0 is lost: it left",
        "placement 2 is asked for",
        "ended early",
        "1 engines were lost with it",
        "of which 3.000 s in the Scheduler's queue; 1 earlier placements ended",
    )

"""The timeline of one attempt, and what of it is left of a long prompt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.messages.ids import Path, WorkerId
from cluster.messages.placement import Placement, Rejection
from cluster.messages.timeline import TimelineStage
from cluster.step_stream.way import on_the_way
from router.session.timeline import (
    INGRESS,
    MAX_STAGES,
    SCHEDULER,
    AttemptTimeline,
    at_worker,
    bounded,
    preparation,
    unmeasured_s,
    unplaced,
    without_gaps,
)
from tests.unit.timelines import check_apart, check_covers

P, D = WorkerId("p0"), WorkerId("d0")
PAIR = Placement(path=Path.PREFILL_DECODE, prefill=P, decode=D, why="least cost", num_hit_tokens=32, queued_s=0.5)
ALONE = Placement(path=Path.DECODE, prefill=None, decode=D, why="alone")
OF_PREFILL = (
    TimelineStage("receive", 0.0, 0.1),
    TimelineStage("prefill", 0.3, 0.8, notes={"tokens": 100}),
    TimelineStage("output", 0.8, 0.9),
)
OF_DECODE = (
    TimelineStage("promise", 0.0, 0.1),
    TimelineStage("first_decode", 0.7, 0.9),
    TimelineStage("pull_transfer", 0.2, 0.6, notes={"bytes": 5}),
)

seconds = st.floats(0.0, 10.0, allow_subnormal=False)
measured = st.lists(
    st.builds(
        lambda name, begin, length: TimelineStage(name, begin, begin + length),
        st.sampled_from(["receive", "prefill", "pull_transfer", "output", "engine_queue", "connect", "deliver"]),
        seconds,
        seconds,
    ),
    max_size=100,
)


def names(stages: tuple[TimelineStage, ...] | list[TimelineStage]) -> list[str]:
    return [stage.name for stage in stages]


def test_handover_is_shown_from_the_queue_to_the_last_token() -> None:
    timeline = AttemptTimeline(PAIR, asked_s=1.0, placed_s=1.6)
    timeline.prefilled(2.7, OF_PREFILL)
    timeline.released(2.7)
    timeline.generated(3.8, OF_DECODE)
    timeline.checked(3.8)
    timeline.num_steps = 6
    stages = timeline.stages(5.0, "finished", num_tokens=7)
    of_prefill = ["send", "receive", "wait", "prefill", "output", "network"]
    of_decode = ["send", "promise", "wait", "pull_transfer", "wait", "first_decode", "network"]
    assert names(stages) == ["queue", "placement", *of_prefill, *of_decode, "decode"]
    assert [stage.place for stage in stages] == [SCHEDULER] * 2 + [P] * 6 + [D] * 8
    assert stages[1].notes == {"path": "P->D", "why": "least cost", "expected_hit_tokens": 32}
    assert stages[-1] == TimelineStage("decode", 3.8, 5.0, D, {"tokens": 7, "steps": 6})
    check_apart(stages)
    check_covers([TimelineStage("before", 0.0, 1.0, INGRESS), *stages], 5.0)


def test_time_that_a_worker_did_not_measure_is_the_way_there_and_back() -> None:
    sent, *inside, back = at_worker(P, "prefill", [TimelineStage("prefill", 0.0, 1.0)], 10.0, 11.5)
    assert (sent.start_s, sent.end_s, back.start_s, back.end_s) == (10.0, 10.25, 11.25, 11.5)
    assert [(stage.start_s, stage.end_s) for stage in inside] == [(10.25, 11.25)]


def test_worker_that_has_measured_nothing_is_one_stage() -> None:
    assert at_worker(P, "prefill", [], 1.0, 2.0) == [TimelineStage("unmeasured", 1.0, 2.0, P, {"of": "prefill"})]


def test_what_the_ingress_measures_of_the_way_is_no_part_of_what_is_left() -> None:
    measured = on_the_way((TimelineStage("prefill", 0.0, 1.0),), connect_s=0.2, came_s=1.1)
    stages = at_worker(P, "prefill", measured or (), 10.0, 11.5)
    assert [(stage.name, round(stage.start_s, 6), round(stage.end_s, 6)) for stage in stages] == [
        ("connect", 10.0, 10.2),
        ("send", 10.2, 10.25),
        ("prefill", 10.25, 11.25),
        ("network", 11.25, 11.3),
        ("deliver", 11.3, 11.5),
    ]
    assert unmeasured_s(stages, 20.0) == pytest.approx({"way": 0.1})


def test_request_in_the_queue_of_its_engine_waits_for_a_reason_that_is_known() -> None:
    """The queue goes on beside a pull, whose own stages say more."""
    queue = (TimelineStage("engine_queue", 0.1, 0.45),)
    pull = (TimelineStage("pull_transfer", 0.2, 0.4), TimelineStage("first_decode", 0.6, 0.9))
    inside = without_gaps([TimelineStage("receive", 0.0, 0.1), *queue, *pull])
    assert [(stage.name, stage.start_s, stage.end_s) for stage in inside] == [
        ("receive", 0.0, 0.1),
        ("engine_queue", 0.1, 0.2),
        ("pull_transfer", 0.2, 0.4),
        ("engine_queue", 0.4, 0.45),
        ("wait", 0.45, 0.6),
        ("first_decode", 0.6, 0.9),
    ]


def test_time_that_nothing_has_measured_counts_until_the_first_token_only() -> None:
    stages = [TimelineStage("send", 0.0, 0.1), TimelineStage("wait", 0.2, 0.5), TimelineStage("wait", 0.6, 0.9)]
    assert unmeasured_s(stages, 0.3) == pytest.approx({"way": 0.1, "wait": 0.1})
    assert unmeasured_s(stages, 9.0) == pytest.approx({"way": 0.1, "wait": 0.6})
    assert unmeasured_s([TimelineStage("prefill", 0.0, 1.0)], 9.0) == {}


def test_first_token_that_is_held_back_is_shown_beside_what_it_waits_for() -> None:
    timeline = AttemptTimeline(PAIR, 0.0, 0.5)
    timeline.prefilled(1.0, ())
    timeline.generated(2.0, ())
    timeline.released(2.0)
    stages = timeline.stages(3.0, "finished", 3)
    assert [(s.name, s.start_s, s.end_s) for s in stages if s.place == INGRESS] == [("hold", 1.0, 2.0)]


def test_attempt_without_an_answer_says_what_it_waited_for() -> None:
    timeline = AttemptTimeline(PAIR, 0.0, 0.5)
    assert timeline.stages(2.0, "failed", 0)[-1] == TimelineStage("failed", 0.5, 2.0, P, {"waits_for": "prefill"})
    timeline.prefilled(1.0, ())
    assert timeline.stages(2.0, "aborted", 0)[-1] == TimelineStage("aborted", 1.0, 2.0, D, {"waits_for": "first_token"})


def test_wait_after_a_pause_is_called_so() -> None:
    assert AttemptTimeline(ALONE, 1.0, 2.0, is_resumed=True).stages(3.0, "failed", 0)[0].name == "pause"


def test_time_before_a_placement_is_shown_also_if_none_comes() -> None:
    assert names(preparation(0.2, 0.5, 7)) == ["prepare", "admit"]
    assert names(preparation(None, 0.5, 7)) == ["prepare"]
    refused = unplaced(0.5, 9.0, Rejection(retry_after_s=1.0, why="all workers are busy"), is_paused=False)
    assert refused == TimelineStage("queue", 0.5, 9.0, SCHEDULER, {"why": "all workers are busy", "options": 0})


@given(measured)
def test_stages_of_a_worker_are_laid_side_by_side(stages: list[TimelineStage]) -> None:
    inside = without_gaps(stages)
    check_apart(inside)
    if inside:
        check_covers(inside, inside[-1].end_s)
        assert inside[-1].end_s == max(stage.end_s for stage in stages if stage.name != "engine_queue")


@given(measured, measured, st.lists(seconds, min_size=5, max_size=5), st.booleans())
def test_every_timeline_is_whole_and_bounded(
    prefill: list[TimelineStage], first: list[TimelineStage], waits: list[float], is_verified: bool
) -> None:
    """Whatever workers say, also if their times are longer than the ingress has waited for them."""
    asked_s, placed_s, prefilled_s, first_s, ended_s = (sum(waits[: n + 1]) for n in range(5))
    timeline = AttemptTimeline(PAIR, asked_s, placed_s)
    timeline.prefilled(prefilled_s, prefill)
    timeline.released(prefilled_s)
    timeline.generated(first_s, first)
    if is_verified:
        timeline.checked(min(ended_s, first_s + 0.1))
    stages = timeline.stages(ended_s, "finished", 1)
    assert len(stages) <= MAX_STAGES
    check_apart(stages)
    assert 0.0 <= sum(unmeasured_s(stages, first_s).values()) <= first_s - placed_s + 1e-6
    if len(prefill) + len(first) < MAX_STAGES // 4:
        check_covers([*preparation(None, asked_s, 1), *stages], ended_s)


def test_steps_of_a_long_prompt_that_do_not_fit_are_one_stage_that_says_so() -> None:
    steps = [TimelineStage("prefill", float(n), n + 1.0, P, {"tokens": 10}) for n in range(100)]
    stages = bounded([TimelineStage("send", 0.0, 0.0, P), *steps, TimelineStage("decode", 100.0, 101.0, P)])
    assert len(stages) == MAX_STAGES
    merged = stages[-2]
    assert (merged.name, merged.end_s) == ("prefill", 100.0)
    assert sum(int(stage.notes.get("tokens", 0)) for stage in stages) == 1000
    assert merged.notes["merged"] == merged.notes["steps"] == 102 - MAX_STAGES + 1

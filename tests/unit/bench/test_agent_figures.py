"""What the bench of agents on real engines says of its rounds."""

from dataclasses import replace

import pytest

from bench.fronts.census import ENGINE, Process
from bench.retention.agent_figures import (
    HEADING,
    KINDS,
    Asked,
    Objective,
    compared,
    cores,
    differences,
    rows,
    tasks_row,
)

OBJECTIVE = Objective(ttft_s=0.1, ttft_per_token_s=1e-4, tpot_s=0.025)


def a_round(ttft_s: float = 0.15, tpot_s: float = 0.02, num_hits: int = 900) -> list[Asked]:
    first = Asked(is_agent=True, step=0, ttft_s=9.0, tpot_s=0.9, num_prompt=1000, num_hits=0, num_tries=3)
    steps = [
        Asked(is_agent=True, step=step, ttft_s=ttft_s, tpot_s=tpot_s, num_prompt=1000, num_hits=num_hits)
        for step in (1, 2, 3)
    ]
    chat = Asked(is_agent=False, step=0, ttft_s=ttft_s / 2, tpot_s=2 * tpot_s, num_prompt=500, num_hits=100)
    return [first, *steps, chat]


def test_each_kind_of_request_has_a_row() -> None:
    told = rows("a", [a_round(), a_round(num_hits=700)], OBJECTIVE)
    assert told == [
        ("a", "2 first steps", "0.0 %", "9000", "9000", "9000", "900", "900", "0.0 %", "4"),
        ("a", "6 next steps", "80.0 %", "150", "150", "150", "20", "20", "100.0 %", "0"),
        ("a", "2 chats", "20.0 %", "75", "75", "75", "40", "40", "0.0 %", "0"),
    ]
    assert {len(row) for row in told} == {len(HEADING)}


@pytest.mark.parametrize(
    ("ttft_s", "tpot_s", "good"), [(0.19, 0.02, "100.0 %"), (0.21, 0.02, "0.0 %"), (0.1, 0.03, "0.0 %")]
)
def test_request_is_good_that_meets_both_objectives(ttft_s: float, tpot_s: float, good: str) -> None:
    assert rows("a", [a_round(ttft_s, tpot_s)], OBJECTIVE)[1][8] == good


def test_system_without_answers_has_rows() -> None:
    assert rows("a", [[]], OBJECTIVE)[1][:3] == ("a", "0 next steps", "0.0 %")


def test_difference_is_ours_less_theirs_by_request() -> None:
    runs = {"theirs": [a_round(0.5, 0.03, 400)] * 2, "ours": [a_round(0.2, 0.02, 900)] * 2}
    assert differences(runs)[1:] == [
        (
            *("ours less theirs", "next steps", "+50.0 (+50.0 to +50.0)"),
            *("-300.0 (-300.0 to -300.0)", "-10.0 (-10.0 to -10.0)"),
        ),
        ("ours less theirs", "chats", "+0.0 (+0.0 to +0.0)", "-150.0 (-150.0 to -150.0)", "-20.0 (-20.0 to -20.0)"),
    ]


def test_interval_has_the_differences_between_rounds() -> None:
    ours, theirs = [a_round(0.2), a_round(0.4)], [a_round(0.3), a_round(0.3)]
    found = compared(ours, theirs, "next steps", lambda asked: asked.ttft_s)
    assert (found.low, found.value, found.high) == pytest.approx((-0.1, 0.0, 0.1))


@pytest.mark.parametrize("kind", KINDS)
def test_rounds_of_different_requests_are_not_compared(kind: str) -> None:
    with pytest.raises(ValueError):
        compared([a_round()], [[]], kind, lambda asked: asked.ttft_s)


def test_a_task_is_told_by_what_became_of_all_of_its_steps() -> None:
    slow = [replace(asked, num_tries=2 if asked.step == 2 else 1) for asked in a_round(ttft_s=0.3)]
    quick = [replace(asked, ttft_s=0.1, tpot_s=0.01, num_tries=1) for asked in a_round()]
    told = tasks_row("a", [[*slow, *quick], quick], OBJECTIVE)
    assert told == ("a", "3", "0.4", "9.9", "3.6", "2", "1")


def test_cores_are_told_for_each_process_of_the_systems_that_ran() -> None:
    engine, other, ingress = (
        Process(pid, 1, "baton", role) for pid, role in ((1, ENGINE), (2, ENGINE), (3, "Ingress"))
    )
    idle, stopped = Process(4, 1, "baton", "raylet"), Process(5, 1, "vllm", ENGINE)
    used = {other: 1.0, idle: 0.09, engine: 4.0, stopped: 9.0, ingress: 2.5}
    assert cores(used, ["baton"], 10.0) == "engine core 0.40 + 0.10, Ingress 0.25"

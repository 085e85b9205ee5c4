"""For each benchmark with goals: figures that reach them all, and figures that miss each one."""

from dataclasses import replace

import pytest

from bench.fronts.cost import Cost
from bench.fronts.measure import Cell
from bench.fronts.report import Figures
from bench.goals import (
    chat_state,
    constraint_cost,
    context,
    edge_cost,
    goodput_parts,
    goodput_real,
    handoff,
    limits_cost,
    metrics_cost,
    overhead,
    placement,
    request_cost,
    safety_cost,
    scheduler_cost,
    tenants_cost,
)
from bench.goals.verdict import MISSED_STATUS, conclude
from bench.live.goodput import Interval
from bench.live.report import Verdict
from bench.turns.added_ttft import Added
from bench.turns.long_conversation import FITTED, NAIVE, Summary
from bench.turns.turn_cost import Cost as TurnsCost


def test_run_that_reaches_its_goals_ends_well() -> None:
    conclude([])


def test_run_that_misses_a_goal_says_so_and_ends_with_a_status(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        conclude(["one thing: 2; the goal is 1 at most"])
    assert ended.value.code == MISSED_STATUS
    assert "one thing: 2; the goal is 1 at most" in capsys.readouterr().out


@pytest.mark.parametrize(("per_s", "p99_ms", "number"), [(13_000, 0.6, 0), (9_900, 0.6, 1), (13_000, 1.1, 1)])
def test_placement(per_s: float, p99_ms: float, number: int) -> None:
    assert len(placement.missed(per_s, p99_ms)) == number


@pytest.mark.parametrize(("without", "number"), [(5.0, 0), (10.3, 0), (10.5, 1), (0.0, 0)])
def test_goodput_parts(without: float, number: int) -> None:
    rates = {("everything", "a/mid"): 10.0, ("no tier", "a/mid"): without}
    assert len(goodput_parts.missed(rates, "everything")) == number


@pytest.mark.parametrize(
    ("cell", "part", "left", "number"),
    [
        ("documents/mid", "no KV events: prefixes as placed", 0.88, 0),
        ("documents/mid", "no KV events: prefixes as placed", 1.0, 1),
        ("arxiv/mid", "no KV events: prefixes as placed", 1.0, 0),
        ("documents/mid", "no handoffs: all workers in one pool", 1.0, 0),
    ],
)
def test_part_that_is_claimed_to_be_worth_something_is(cell: str, part: str, left: float, number: int) -> None:
    rates = {("everything", cell): 10.0, (part, cell): 10.0 * left}
    assert len(goodput_parts.missed(rates, "everything")) == number


def figures(
    token_us: float = 45.0,
    request_ms: float = 6.0,
    gap_p99_ms: float = 60.0,
    idle_ms: float = 50.0,
    ttft_p50_ms: float = 14.0,
) -> Figures:
    return Figures(
        cost=Cost(request_ms={"all": request_ms}, token_us={"all": token_us}),
        idle_ms_per_s={"all": idle_ms},
        ttft_p50_ms=ttft_p50_ms,
        ttft_p99_ms=1.0,
        gap_p50_ms=1.0,
        gap_p99_ms=gap_p99_ms,
        tokens_per_s=1.0,
        prompt_tokens=1,
        token_us_by_round=[],
        gross_cpu_s={},
        engine_cpu_s=0.0,
        generator_cpu_s=0.0,
        strangers_cpu_share=0.0,
    )


@pytest.mark.parametrize(
    ("ours", "streams", "mode", "number"),
    [
        (figures(), 64, "paced", 0),
        (figures(token_us=51.0), 64, "paced", 1),
        (figures(token_us=51.0), 16, "paced", 0),
        (figures(token_us=51.0), 64, "saturation", 0),
        (figures(token_us=170.0), 64, "saturation", 1),
        (figures(token_us=150.0), 1, "paced", 0),
        (figures(token_us=170.0), 1, "paced", 1),
        (figures(token_us=170.0), 1, "saturation", 0),
        (figures(token_us=250.0), 1, "saturation", 1),
        (figures(idle_ms=61.0), 16, "paced", 1),
        (figures(ttft_p50_ms=16.0), 1, "saturation", 1),
        (figures(ttft_p50_ms=16.0), 16, "saturation", 0),
        (figures(request_ms=14.0), 64, "paced", 1),
        (figures(gap_p99_ms=150.0), 64, "paced", 1),
        (figures(gap_p99_ms=150.0), 64, "saturation", 0),
    ],
)
def test_overhead(ours: Figures, streams: int, mode: str, number: int) -> None:
    cells = {
        Cell(mode, streams, "baton"): ours,
        Cell(mode, streams, "vllm-router"): figures(token_us=160.0, request_ms=13.0),
        Cell(mode, streams, "bare"): figures(gap_p99_ms=50.0, ttft_p50_ms=10.0),
    }
    assert len(overhead.missed({"paced": 0.03, "saturation": 0.0}, cells)) == number


def test_overhead_of_baton_alone_shows_nothing() -> None:
    assert overhead.missed({"paced": 0.03}, {Cell("paced", 1, "baton"): figures()})


@pytest.mark.parametrize(
    ("mix", "gain", "number"),
    [
        ("mixed", Interval(0.17, 0.10, 0.26), 0),
        ("mixed", Interval(0.04, -0.01, 0.09), 1),
        ("mixed", Interval(-0.04, -0.06, -0.01), 1),
        ("long prompts", Interval(0.27, 0.14, 0.39), 0),
        ("long prompts", Interval(0.004, -0.17, 0.19), 1),
        ("chats", Interval(-0.002, -0.008, 0.0), 0),
        ("chats", Interval(-0.02, -0.03, -0.01), 1),
        ("chats", Interval(-0.04, -0.09, 0.01), 0),
        ("chats", Interval(-0.14, -0.33, 0.01), 1),
    ],
)
def test_goodput_of_real_engines(mix: str, gain: Interval, number: int) -> None:
    assert len(goodput_real.missed([Verdict(mix, "2 x vllm", gain)])) == number


def test_goodput_of_no_other_system_shows_nothing() -> None:
    assert goodput_real.missed([])


@pytest.mark.parametrize(("place_s", "number"), [(2e-4, 0), (6e-4, 1)])
def test_request_cost(place_s: float, number: int) -> None:
    assert len(request_cost.missed({"render": 5e-4, "place": place_s})) == number


@pytest.mark.parametrize(
    ("share", "joined_s", "num_bytes", "number"),
    [(0.05, 1.0, 76_000_000, 0), (0.3, 1.0, 76_000_000, 1), (0.3, 9.0, 2**30, 3)],
)
def test_metrics_cost(share: float, joined_s: float, num_bytes: int, number: int) -> None:
    assert len(metrics_cost.missed(share, joined_s, num_bytes)) == number


@pytest.mark.parametrize(("cpu", "latency", "number"), [(1.05, 1.0, 0), (1.05, 3.0, 0), (1.3, 1.0, 1)])
def test_edge_cost(cpu: float, latency: float, number: int) -> None:
    assert len(edge_cost.missed({"500 tokens, CPU": cpu, "500 tokens, latency": latency})) == number


def test_edge_cost_without_cpu_time_shows_nothing() -> None:
    assert edge_cost.missed({"500 tokens, latency": 1.0})


@pytest.mark.parametrize(("known_ms", "guarded_us", "number"), [(0.01, 19.0, 0), (0.09, 19.0, 1), (0.01, 27.0, 1)])
def test_constraint_cost(known_ms: float, guarded_us: float, number: int) -> None:
    ingress_ms = {constraint_cost.VLLMS_CHECK: 0.09, constraint_cost.COUNTING: 0.02, constraint_cost.KNOWN: known_ms}
    assert len(constraint_cost.missed("a schema", ingress_ms, 13.0, guarded_us)) == number


@pytest.mark.parametrize(
    ("window", "computed", "known", "number"),
    [(8192, 484, 1.0, 0), (8192, 1600, 1.0, 1), (2048, 1600, 1.0, 0), (2048, 3500, 1.0, 1), (8192, 484, 0.9, 1)],
)
def test_context(window: int, computed: float, known: float, number: int) -> None:
    naive = context.PerTurn(computed=3729, read=0, moved=63, known=0.53)
    assert len(context.missed(window, naive, context.PerTurn(computed, 387, 11, known))) == number
    assert context.missed(window, replace(naive, moved=0), context.PerTurn(computed, 387, 11, known)) == []


PARTS_MS = {"redeem": 0.5, "until the first token": 16.0, "of which the pull": 2.8}
RELEASED_S = {"count": 100.0, "p50": 0.005, "p90": 0.01, "p99": 0.025}


@pytest.mark.parametrize(
    ("changed_ms", "changed_s", "number"),
    [
        ({}, {}, 0),
        ({"redeem": 2.5}, {}, 1),
        ({"until the first token": 60.0}, {}, 1),
        ({"of which the pull": 12.0}, {}, 1),
        ({}, {"count": 80.0}, 1),
        ({}, {"p50": 0.025}, 1),
    ],
)
def test_handoff(changed_ms: dict[str, float], changed_s: dict[str, float], number: int) -> None:
    parts_ms = {2000: PARTS_MS | changed_ms}
    assert len(handoff.missed(parts_ms, RELEASED_S | changed_s, num_released=100)) == number


def test_handoff_of_longer_prompts_has_no_goal() -> None:
    assert handoff.missed({4000: dict.fromkeys(PARTS_MS, 1000.0)}, RELEASED_S, num_released=100) == []


NAIVE_TURNS = Summary(1310, 886, 0.32, moved=59, known=0.64, ttft_p50_s=0.2, ttft_p90_s=0.25)
FITTED_TURNS = Summary(870, 209, 0.76, moved=21, known=0.99, ttft_p50_s=0.1, ttft_p90_s=0.13)


@pytest.mark.parametrize(
    ("added_s", "ingress_ms", "fitted", "number"),
    [
        (0.009, 10.6, FITTED_TURNS, 0),
        (0.009, None, FITTED_TURNS, 0),
        (0.030, 10.6, FITTED_TURNS, 1),
        (0.009, 20.0, FITTED_TURNS, 1),
        (0.009, 10.6, replace(FITTED_TURNS, computed_tokens=700), 1),
        (0.009, 10.6, replace(FITTED_TURNS, known=0.6), 1),
    ],
)
def test_chat_state(added_s: float, ingress_ms: float | None, fitted: Summary, number: int) -> None:
    added = [
        Added(1, [], [], Interval(added_s, added_s, added_s)),
        Added(8, [], [], Interval(0.1, 0.1, 0.1)),
    ]
    costs = {kind: TurnsCost(1.0, ms, [], None) for kind, ms in (("stored", ingress_ms), ("stateless", 4.4))}
    assert len(chat_state.missed(added, costs, {NAIVE: NAIVE_TURNS, FITTED: fitted})) == number
    in_window = {NAIVE: replace(NAIVE_TURNS, moved=0), FITTED: FITTED_TURNS}
    assert chat_state.missed(added[1:], costs | {"stored": costs["stateless"]}, in_window) == []


PACE = safety_cost.Pace(word_ms=48.0, window_ms=2200.0, guard_ms=50.0, num_windows=3.25)
NO_GUARD = safety_cost.Measured(120.0, 200.0, 0.0, 113.0, 138.0, 180.0, calls=0.0)
SIDES = {
    "off": safety_cost.Measured(90.0, 100.0, 21.0, 25.0, 25.0, 30.0, calls=0.0),
    "no guard": NO_GUARD,
    "in doubt": NO_GUARD._replace(longest99=2600.0, calls=0.5),
    "always": safety_cost.Measured(2450.0, 3500.0, 0.0, 0.1, 2340.0, 3100.0, calls=4.25),
    "live": NO_GUARD._replace(ttft=135.0, calls=4.25),
}
COSTS = {
    "token": {"all three": 38.0},
    "60 words": {"request": 2700.0, "again": 200.0},
    "1000 words": {"request": 49_000.0, "again": 370.0},
}


def missed_by(side: str, **changed: float) -> list[str]:
    return safety_cost.missed(COSTS, SIDES | {side: SIDES[side]._replace(**changed)}, {"blocked": 0.0}, PACE)


def test_safety_cost() -> None:
    assert safety_cost.missed(COSTS, SIDES, {"blocked": 0.0}, PACE) == []
    assert len(safety_cost.missed(COSTS, SIDES, {"blocked": 0.002}, PACE)) == 1


@pytest.mark.parametrize(
    ("what", "stage", "us"),
    [
        ("token", "all three", 61.0),
        ("60 words", "request", 16e3),
        ("1000 words", "request", 260e3),
        ("1000 words", "again", 12e3),
    ],
)
def test_screening_that_costs_more_cpu_time(what: str, stage: str, us: float) -> None:
    costs = COSTS | {what: COSTS[what] | {stage: us}}
    assert len(safety_cost.missed(costs, SIDES, {"blocked": 0.0}, PACE)) == 1


@pytest.mark.parametrize(
    ("side", "changed"),
    [
        ("no guard", {"gap99": 125.0}),
        ("in doubt", {"ttft": 220.0}),
        ("in doubt", {"longest99": 4500.0}),
        ("in doubt", {"calls": 2.2}),
        ("always", {"ttft": 2950.0}),
        ("always", {"longest": 2850.0}),
        ("always", {"longest99": 4500.0}),
        ("live", {"ttft": 270.0}),
        ("live", {"gap99": 210.0}),
        ("live", {"calls": 3.25}),
    ],
)
def test_guard_or_stages_that_hold_answers_for_longer(side: str, changed: dict[str, float]) -> None:
    assert len(missed_by(side, **changed)) == 1


def test_guard_that_always_runs_is_called_once_for_each_text() -> None:
    assert missed_by("always", calls=2 * 4.25)
    assert missed_by("always", calls=3.25)


@pytest.mark.parametrize(
    ("figures", "num_missed"),
    [
        ((0.29, 5_100.0, 1.9, 0.9), 0),
        ((0.31, 5_100.0, 1.9, 0.9), 1),
        ((0.29, 4_900.0, 1.9, 0.9), 1),
        ((0.29, 5_100.0, 2.1, 0.9), 1),
        ((0.29, 5_100.0, 1.9, 1.1), 1),
    ],
)
def test_scheduler_cost(figures: tuple[float, float, float, float], num_missed: int) -> None:
    assert len(scheduler_cost.missed(*figures)) == num_missed


@pytest.mark.parametrize(("added_s", "number"), [(2e-4, 0), (4e-4, 1)])
def test_tenants_cost(added_s: float, number: int) -> None:
    assert len(tenants_cost.missed(added_s)) == number


@pytest.mark.parametrize(("cpu_s", "number"), [(2e-4, 0), (6e-4, 1)])
def test_limits_cost(cpu_s: float, number: int) -> None:
    assert len(limits_cost.missed(cpu_s)) == number

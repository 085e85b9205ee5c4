"""The evaluation matrix: cells that exist, trials that are kept, tables that say who is where."""

from pathlib import Path as File

import msgspec
import pytest

from bench.goals import goodput as goals
from bench.matrix import robust
from bench.matrix.cells import CELLS, TRAFFIC, cluster_of, experiment, matching
from bench.matrix.report import Matrix, details, gains, markdown, rates
from bench.matrix.search import Job, Result, Setting, find
from bench.matrix.trials import Trial, TrialFile, TrialKey
from cluster.messages.ids import Outcome, Path
from cluster.messages.placement import Slo
from cluster.simulation.engine.truth.truth import Truth
from cluster.simulation.results.summary import RunSummary, summary
from cluster.simulation.traffic.workload import RequestRecord

A_KEY = TrialKey(
    cell="azure-conv/mid",
    policy="round_robin",
    num_prefill=0,
    rate=20.0,
    seed=0,
    num_requests=60,
    target=None,
    cluster=cluster_of("azure-conv/mid", 512),
)


def a_summary(token_share: float) -> RunSummary:
    """Of nine requests that count, the one with the longest prompt was refused."""
    records = [*(a_record(num_prompt=100, is_good=True) for _ in range(9)), a_record(num_prompt=900, is_good=False)]
    return msgspec.structs.replace(summary(records), token_attainment=token_share)


def a_record(num_prompt: int, *, is_good: bool) -> RequestRecord:
    return RequestRecord(
        arrival_s=0.0,
        num_prompt=num_prompt,
        num_output=1,
        slo=Slo(ttft_s=1.0, tpot_s=0.05),
        path=Path.DECODE if is_good else None,
        ttft_s=0.5 if is_good else None,
        outcome=Outcome.FINISHED if is_good else Outcome.REJECTED,
    )


def a_result(
    policy: str,
    rate: float,
    *,
    cell: str = "conversation/mid",
    num_prefill: int = 0,
    step_tokens: int = 512,
    seed: int = 0,
    token_share: float = 0.5,
) -> Result:
    return Result(
        cell=cell,
        policy=policy,
        seed=seed,
        num_requests=60,
        num_prefill=num_prefill,
        step_tokens=step_tokens,
        rate=rate,
        summary=a_summary(token_share),
        took_s=1.0,
    )


@pytest.mark.parametrize("traffic", TRAFFIC)
def test_traffic_of_every_cell_can_be_had_and_is_limited(traffic: str) -> None:
    assert experiment(f"{traffic}/mid", 0, 50, cluster_of(f"{traffic}/mid", 512)).num_requests == 50


def test_held_out_traffic_shares_nothing_with_that_for_tuning() -> None:
    tuning, held_out = (TRAFFIC[name].rows(0, 10_000) for name in ("conversation", "conversation held-out"))
    assert len(tuning) == 7000 and len(held_out) == 5031
    lengths = [[row.num_prompt for row in rows[:20]] for rows in (tuning, held_out)]
    assert lengths[0] != lengths[1]


def test_seeds_of_a_trace_share_no_rows_while_it_has_some() -> None:
    trace = TRAFFIC["conversation"]
    whole = [row.num_prompt for row in trace.rows(0, 6900)]
    windows = [[row.num_prompt for row in trace.rows(seed, 2300)] for seed in range(4)]
    assert [len(window) for window in windows] == [2300] * 4
    assert sorted(windows[0] + windows[1] + windows[2]) == sorted(whole)
    assert sorted(windows[3]) == sorted(windows[0])


def test_cells_are_named_with_wildcards() -> None:
    assert matching(["conversation/*"]) == [cell for cell in CELLS if cell.startswith("conversation/")]
    with pytest.raises(ValueError, match="no cell is called nothing"):
        matching(["conversation/mid", "nothing"])


def test_trial_is_kept_and_not_simulated_again(tmp_path: File) -> None:
    file = tmp_path / "trials.jsonl"
    first = TrialFile(file, "v1").get(A_KEY)
    assert first.summary is not None and first.summary.num_requests == 54
    with file.open("ab") as broken:
        broken.write(b'{"key": ')
    assert TrialFile(file, "v1").get(A_KEY) == first
    assert len(file.read_bytes().splitlines()) == 2


def test_trials_of_other_code_count_only_where_that_is_said(tmp_path: File) -> None:
    file = tmp_path / "trials.jsonl"
    kept = Trial(key=A_KEY, code="v1", summary=None, took_s=1.0)
    file.write_bytes(msgspec.json.encode(kept) + b"\n")
    assert TrialFile(file, "v2", frozenset({"round_robin"})).get(A_KEY) == kept
    assert TrialFile(file, "v2").get(A_KEY).code == "v2"


def test_search_finds_a_rate_and_the_same_one_from_its_trials(tmp_path: File) -> None:
    job = Job(
        cell="azure-conv/mid",
        policy="pd_least",
        seed=0,
        splits=(2, 4),
        num_requests=200,
        step_tokens=(256, 512),
        target=0.9,
        guess_per_s=60.0,
    )
    found = find(job, tmp_path / "trials.jsonl", "v1", frozenset(), False)
    assert 0 < found.rate < 1000 and found.num_prefill in (2, 4) and found.step_tokens in (256, 512)
    assert isinstance(found.summary, RunSummary) and found.summary.attainment >= 0.9
    num_trials = len((tmp_path / "trials.jsonl").read_bytes().splitlines())
    assert find(job, tmp_path / "trials.jsonl", "v1", frozenset(), False) == found
    assert len((tmp_path / "trials.jsonl").read_bytes().splitlines()) == num_trials


def test_every_policy_chooses_among_the_step_tokens_and_only_pools_among_splits() -> None:
    job = Job(
        cell="azure-conv/mid",
        policy="pd_least",
        seed=0,
        splits=(2, 3, 4),
        num_requests=80,
        step_tokens=(256, 512),
        target=0.9,
        guess_per_s=60.0,
    )
    assert job.settings[0] == Setting(3, 256) and len(job.settings) == 6
    assert msgspec.structs.replace(job, policy="lmetric").settings == [Setting(0, 256), Setting(0, 512)]


def test_row_has_rates_with_the_best_setting() -> None:
    matrix = Matrix(
        [
            a_result("round_robin", 2.0),
            a_result("pd_least", 3.0, num_prefill=5, step_tokens=256),
            a_result("goodput", 4.5, num_prefill=3),
            a_result("goodput_no_admission", 9.0, num_prefill=3),
        ]
    )
    cells = dict(zip(*rates(matrix), strict=True))
    assert cells["round_robin"] == "2 512"
    assert cells["pd_least"] == "3 5P 256"
    assert cells["goodput"] == "4.5 3P"
    assert gains(matrix)[1] == ("conversation/mid", "pd_least", "1.500", "1.500", "-", "-", "-")
    assert markdown(rates(matrix)).count("\n") == 3


def test_best_step_at_the_edge_of_those_that_were_offered_is_marked() -> None:
    results = [a_result("round_robin", 2.0), a_result("lmetric", 2.0, step_tokens=256)]
    matrix = Matrix(results, [256, 512, 1024])
    assert [matrix.setting("conversation/mid", policy) for policy in ("round_robin", "lmetric")] == ["512", "256*"]
    assert Matrix(results, [256]).setting("conversation/mid", "lmetric") == "256"


def test_other_rules_on_our_engines_are_told_from_rivals() -> None:
    policies = {"lmetric_admission": 2.0, "lmetric_admission_steps": 4.0, "goodput": 5.0}
    matrix = Matrix([a_result(policy, rate) for policy, rate in policies.items()])
    assert gains(matrix)[1][1:] == (
        "lmetric_admission",
        "2.500",
        "2.500",
        "lmetric_admission_steps",
        "1.250",
        "1.250",
    )


def test_tokens_are_compared_with_the_rival_that_serves_most_of_them() -> None:
    matrix = Matrix(
        [
            a_result("lmetric", 2.0, token_share=0.9),
            a_result("min_ttft", 2.5, token_share=0.4),
            a_result("goodput", 3.0, token_share=0.5),
        ]
    )
    assert gains(matrix)[1][1:4] == ("min_ttft", "1.200", "0.833")


def test_details_say_who_is_served() -> None:
    head, line = details(Matrix([a_result("goodput", 3.0, token_share=0.3)]))
    shown = dict(zip(head, line, strict=True))
    assert shown["tokens in SLO"] == "30 %"
    assert shown["refused"] == "11 %"
    assert shown["longest tenth"] == "0 %"


def test_rates_are_means_over_seeds() -> None:
    matrix = Matrix([a_result("round_robin", 2.0), a_result("round_robin", 3.0, seed=1)])
    assert matrix.rate("conversation/mid", "round_robin") == 2.5
    assert matrix.shown("conversation/mid", "round_robin") == "2.5±254% 512"
    assert Matrix([a_result("round_robin", 2.0)]).shown("conversation/mid", "round_robin") == "2 512"


def test_gains_are_of_the_same_arrivals() -> None:
    by_policy = {"lmetric": (2.0, 4.0), "goodput": (3.0, 5.0)}
    matrix = Matrix(
        [a_result(policy, rate, seed=seed) for policy in by_policy for seed, rate in enumerate(by_policy[policy])]
    )
    assert gains(matrix)[1][2] == "1.375±116%"


@pytest.mark.parametrize(
    ("ours", "token_share", "says"),
    [(1.2, 0.5, None), (1.1, 0.5, None), (1.05, 0.6, "requests"), (1.2, 0.4, "tokens")],
)
def test_goal_is_the_gain_on_record_less_noise(
    monkeypatch: pytest.MonkeyPatch, ours: float, token_share: float, says: str | None
) -> None:
    monkeypatch.setattr(goals, "RECORDED", {"conversation/mid": goals.Record(1.2, 1.2, 0.1)})
    rivals = [a_result("lmetric", 1.0), a_result("lmetric_admission_steps", 9.0), a_result("lmetric", 1.0, cell="a/b")]
    found = goals.missed(Matrix([*rivals, a_result("goodput", ours, token_share=token_share)]))
    assert [says in line for line in found if says] == ([True] if says else [])
    assert bool(found) == (says is not None)


@pytest.mark.parametrize(("ours", "is_missed"), [(1.0, False), (0.97, False), (0.94, True)])
def test_another_rule_on_our_engines_must_not_be_better_than_it_was(
    monkeypatch: pytest.MonkeyPatch, ours: float, is_missed: bool
) -> None:
    monkeypatch.setattr(goals, "RECORDED", {"conversation/mid": goals.Record(1.0, 1.0, 1.0)})
    rivals = [a_result("lmetric", 0.5), a_result("lmetric_admission_steps", 1.0)]
    found = goals.missed(Matrix([*rivals, a_result("goodput", ours)]))
    assert ["lmetric_admission_steps" in line for line in found] == ([True] if is_missed else [])


@pytest.mark.parametrize(("num_seeds", "is_missed"), [(1, False), (3, True)])
def test_run_with_all_seeds_has_less_noise(monkeypatch: pytest.MonkeyPatch, num_seeds: int, is_missed: bool) -> None:
    monkeypatch.setattr(goals, "RECORDED", {"conversation/mid": goals.Record(1.0, 1.0, 1.0)})
    rates = {"lmetric": 1.0, "goodput": 0.93}
    results = [a_result(policy, rates[policy], seed=seed) for policy in rates for seed in range(num_seeds)]
    assert bool(goals.missed(Matrix(results))) == is_missed


def test_aim_is_named_where_it_is_not_reached_in_requests_or_in_tokens() -> None:
    rivals = [a_result("lmetric", 1.0), a_result("min_ttft_filter_steps", 1.15, token_share=0.5)]
    head, *rows = goals.aims(Matrix([*rivals, a_result("goodput", 1.2, token_share=0.45)]))
    assert head == ("aim", "at least", "requests", "tokens", "is reached")
    assert rows == [("conversation/mid", "1.1", "1.043", "0.939", "no")]
    assert goals.aims(Matrix([*rivals, a_result("goodput", 1.4, token_share=0.5)]))[1][-1] == "yes"


def test_run_that_compares_nothing_on_record_reaches_no_goal() -> None:
    assert goals.missed(Matrix([a_result("goodput", 1.0), a_result("lmetric", 1.0, cell="a/b")]))
    assert goals.missed(Matrix([]))


def test_every_variation_can_be_built_and_its_rows_shown(tmp_path: File) -> None:
    for variation in robust.VARIATIONS:
        assert variation.cluster.split(variation.num_prefill or 3).decode.number == 8 - (variation.num_prefill or 3)
    done = robust.measure(robust.VARIATIONS[0], a_result("lmetric", 1.0), Truth(), tmp_path / "trials.jsonl", "v1")
    assert done.rate == robust.LOAD
    table = robust.rows([done])
    assert table[1][0] == "nothing wrong" and "/s" in table[1][4] and table[1][1] == "-"


def test_worker_is_lost_within_the_run(tmp_path: File) -> None:
    lost = next(variation for variation in robust.VARIATIONS if variation.loses)
    robust.measure(
        lost, a_result("lmetric", 2.0, step_tokens=256), Truth(form="tiled", seed=7), tmp_path / "trials.jsonl", "v1"
    )
    (line,) = (tmp_path / "trials.jsonl").read_bytes().splitlines()
    cluster = msgspec.json.decode(line, type=Trial).key.cluster
    assert cluster.faults[0].at_s == pytest.approx(0.4 * 60 / 1.8, rel=1e-3)
    assert cluster.decode_step_tokens == 256
    assert cluster.truth == Truth(form="tiled")  # with the seed of the result

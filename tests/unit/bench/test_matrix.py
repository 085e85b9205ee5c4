"""The evaluation matrix: cells that exist, trials that are kept, tables that say who is where."""

from pathlib import Path

import msgspec
import pytest

from bench.matrix import robust
from bench.matrix.cells import CELLS, TRAFFIC, cluster_of, experiment, matching
from bench.matrix.report import Matrix, heading, markdown, row, verdicts
from bench.matrix.search import Job, Result, find
from bench.matrix.trials import Trial, TrialFile, TrialKey
from cluster.simulation.results.summary import RunSummary

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


def a_result(
    policy: str, rate: float, *, cell: str = "conversation/mid", num_prefill: int = 0, seed: int = 0
) -> Result:
    return Result(cell=cell, policy=policy, seed=seed, num_prefill=num_prefill, rate=rate, summary=None, took_s=1.0)


@pytest.mark.parametrize("traffic", TRAFFIC)
def test_traffic_of_every_cell_can_be_had_and_is_limited(traffic: str) -> None:
    assert experiment(f"{traffic}/mid", 0, 50, cluster_of(f"{traffic}/mid", 512)).num_requests == 50


def test_held_out_traffic_shares_nothing_with_that_for_tuning() -> None:
    tuning, held_out = (TRAFFIC[name].rows(0, 10_000) for name in ("conversation", "conversation held-out"))
    assert len(tuning) == 7000 and len(held_out) == 5031
    lengths = [[row.num_prompt for row in rows[:20]] for rows in (tuning, held_out)]
    assert lengths[0] != lengths[1]


def test_cells_are_named_with_wildcards() -> None:
    assert matching(["conversation/*"]) == [cell for cell in CELLS if cell.startswith("conversation/")]
    with pytest.raises(ValueError, match="no cell is called nothing"):
        matching(["conversation/mid", "nothing"])


def test_trial_is_kept_and_not_simulated_again(tmp_path: Path) -> None:
    file = tmp_path / "trials.jsonl"
    first = TrialFile(file, "v1").get(A_KEY)
    assert first.summary is not None and first.summary.num_requests == 54
    with file.open("ab") as broken:
        broken.write(b'{"key": ')
    assert TrialFile(file, "v1").get(A_KEY) == first
    assert len(file.read_bytes().splitlines()) == 2


def test_trials_of_other_code_count_only_where_that_is_said(tmp_path: Path) -> None:
    file = tmp_path / "trials.jsonl"
    kept = Trial(key=A_KEY, code="v1", summary=None, took_s=1.0)
    file.write_bytes(msgspec.json.encode(kept) + b"\n")
    assert TrialFile(file, "v2", frozenset({"round_robin"})).get(A_KEY) == kept
    assert TrialFile(file, "v2").get(A_KEY).code == "v2"


def test_search_finds_a_rate_and_the_same_one_from_its_trials(tmp_path: Path) -> None:
    job = Job(
        cell="azure-conv/mid",
        policy="pd_least",
        seed=0,
        splits=(2, 4),
        num_requests=80,
        step_tokens=512,
        target=0.9,
        guess_per_s=60.0,
    )
    found = find(job, tmp_path / "trials.jsonl", "v1", frozenset(), False)
    assert found.rate > 0 and found.num_prefill in (2, 4)
    assert isinstance(found.summary, RunSummary) and found.summary.attainment >= 0.9
    num_trials = len((tmp_path / "trials.jsonl").read_bytes().splitlines())
    assert find(job, tmp_path / "trials.jsonl", "v1", frozenset(), False) == found
    assert len((tmp_path / "trials.jsonl").read_bytes().splitlines()) == num_trials


def test_row_is_relative_to_round_robin_with_the_best_split() -> None:
    matrix = Matrix(
        [
            a_result("round_robin", 2.0),
            a_result("pd_least", 3.0, num_prefill=5),
            a_result("goodput", 4.5, num_prefill=3),
        ]
    )
    assert heading(matrix) == ("cell", "round_robin req/s", "pd_least", "goodput", "best static", "goodput / best")
    assert row(matrix, "conversation/mid") == ("conversation/mid", "2.00", "1.50 5P", "2.25 3P", "pd_least", "1.500")
    assert markdown([heading(matrix), row(matrix, "conversation/mid")]).count("\n") == 3


def test_rates_are_means_over_seeds() -> None:
    matrix = Matrix([a_result("round_robin", 2.0), a_result("round_robin", 3.0, seed=1)])
    assert matrix.rate("conversation/mid", "round_robin") == 2.5
    assert matrix.spread("conversation/mid", "round_robin") == "±20%"
    assert Matrix([a_result("round_robin", 2.0)]).spread("conversation/mid", "round_robin") == ""


@pytest.mark.parametrize(
    ("cell", "ours", "says"),
    [
        ("azure-conv/mid", 0.985, None),
        ("azure-conv/mid", 0.97, "below it"),
        ("conversation/mid", 1.2, None),
        ("conversation/mid", 1.1, "1.15 is wanted"),
        ("conversation held-out/tight", 1.1, "1.15 is wanted"),
        ("conversation/loose", 1.1, None),
    ],
)
def test_verdict_is_against_the_best_static_policy(cell: str, ours: float, says: str | None) -> None:
    matrix = Matrix([a_result("round_robin", 0.5, cell=cell), a_result("lmetric", 1.0, cell=cell)])
    assert verdicts(matrix) == []
    results = [a_result(policy, rate, cell=cell) for policy, rate in (("lmetric", 1.0), ("goodput", ours))]
    found = verdicts(Matrix(results))
    assert len(found) == (0 if says is None else 1)
    assert all(says in failure for failure in found if says is not None)


def test_every_variation_can_be_built_and_its_rows_shown(tmp_path: Path) -> None:
    for variation in robust.VARIATIONS:
        assert variation.cluster.split(variation.num_prefill).decode.number == 8 - variation.num_prefill
    done = robust.measure(robust.VARIATIONS[0], "lmetric", 1.0, 60, tmp_path / "trials.jsonl", "v1")
    table = robust.rows([done])
    assert table[1][0] == "nothing wrong" and "/s" in table[1][2] and table[1][1] == "-"


def test_worker_is_lost_within_the_run(tmp_path: Path) -> None:
    lost = next(variation for variation in robust.VARIATIONS if variation.loses)
    robust.measure(lost, "lmetric", 2.0, 60, tmp_path / "trials.jsonl", "v1")
    (line,) = (tmp_path / "trials.jsonl").read_bytes().splitlines()
    (fault,) = msgspec.json.decode(line, type=Trial).key.cluster.faults
    assert fault.at_s == pytest.approx(0.4 * 60 / 2.0)

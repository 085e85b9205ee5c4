"""`baton simulate` from its command line to its table, JSON and charts."""

import json
import sys
import xml.etree.ElementTree as ET

import pytest

from cluster.cli.main import main
from cluster.simulation.experiment import Cluster, Experiment, TargetMissed, parse_link
from cluster.simulation.traffic.mixes import generate
from cluster.simulation.traffic.named_mixes import MIXES
from cluster.simulation.traffic.slos import parse_slos

SMALL = ("--requests", "60", "--policy", "round_robin,pd_least")


def simulate(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["baton", "simulate", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_table_has_a_line_per_policy_and_progress_goes_elsewhere(monkeypatch, capsys):
    assert simulate(monkeypatch, *SMALL) == 0
    out, err = capsys.readouterr()
    heading, *lines = out.partition("\n\n")[0].splitlines()
    assert heading.split()[:4] == ["policy", "req/s", "good/s", "attained"]
    assert [line.split()[:2] for line in lines] == [["round_robin", "8"], ["pd_least", "4P4D"]]
    assert "[1/2] round_robin 8 at" in err and "60 requests" in err


def test_json_and_charts_hold_every_run(monkeypatch, tmp_path):
    arguments = ("--rate", "20,1x", "--json", str(tmp_path / "out" / "run.json"), "--plots", str(tmp_path / "charts"))
    assert simulate(monkeypatch, *SMALL, *arguments) == 0
    document = json.loads((tmp_path / "out" / "run.json").read_text())
    runs = [(run["policy"], run["rate_per_s"]) for run in document["runs"]]
    assert [rate for _, rate in runs] == [20, 20, MIXES["tenants"].rate_per_s, MIXES["tenants"].rate_per_s]
    assert document["cluster"]["model"] == "qwen3-32b"
    charts = {file.name: ET.parse(file) for file in (tmp_path / "charts").iterdir()}
    assert set(charts) == {"goodput.svg", "attainment.svg", "ttft.svg", "tpot.svg"}


def test_trace_is_replayed_again_and_again_until_there_are_enough(monkeypatch, tmp_path, capsys):
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        + "".join(f"2024-01-01 00:00:{second:02},500,5\n" for second in range(0, 60, 3))
    )
    assert simulate(monkeypatch, "--trace", str(trace), "--requests", "50", "--policy", "round_robin") == 0
    assert "trace.csv: 50 requests at 0.33/s" in capsys.readouterr().err


def test_highest_rate_is_searched(monkeypatch, capsys):
    arguments = (
        "--mix",
        "poisson",
        "--slo",
        "0.2/0.05",
        "--decode",
        "1",
        "--prefill",
        "1",
        "--rate",
        "4",
        "--max-rate",
    )
    assert simulate(monkeypatch, *SMALL, *arguments) == 0
    assert "max req/s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--trace", "nowhere"), "No such file"),
        (("--model", "gpt-5"), "unknown model"),
        (("--gpu", "l4", "--tp", "1"), "no memory for KV"),
        (("--decode", "0"), "--decode must be at least 1"),
        (("--requests", "1"), "at least 10 requests"),
        (("--target", "1.5"), "is not between 0 and 1"),
        (("--slo", "soon"), "--slo"),
        (("--policy", "best"), "'best' is none of"),
        (("--rate", "fast"), "--rate"),
        (("--link", "-3"), "--link"),
        (("--rows", "x"), "--rows"),
    ],
)
def test_what_cannot_be_simulated_is_refused_in_one_line(monkeypatch, capsys, arguments, message):
    assert simulate(monkeypatch, *arguments) == 2
    assert message in capsys.readouterr().err


def test_run_stops_when_its_target_is_out_of_reach_and_leaves_nothing_behind(recwarn):
    rows = generate(MIXES["poisson"], 300)
    crowded = Experiment(rows, Cluster(num_workers=2), parse_slos("mid"))
    seen: list[object] = []
    with pytest.raises(TargetMissed):
        crowded.run("round_robin", 0, 500.0, target=0.9, on_record=seen.append)
    assert len(seen) < 300
    assert not recwarn.list


def test_same_experiment_gives_the_same_records():
    rows = generate(MIXES["tenants"], 80)
    runs = [Experiment(rows, Cluster(), parse_slos("mid")).run("power_of_two", 4, 30.0, seed=3) for _ in range(2)]
    assert runs[0] == runs[1]
    assert len(runs[0]) == 80


def test_pools_are_split_and_policies_without_prefill_pool_get_all_workers():
    experiment = Experiment(generate(MIXES["chat"], 10), Cluster(), parse_slos("mid"))
    assert experiment.split_name("goodput", 3) == "3P5D"
    assert experiment.split_name("lmetric", 3) == "8"
    setting = Cluster(host_tokens=7).split(3)
    assert (setting.prefill.number, setting.decode.number) == (3, 5)
    assert setting.prefill.kind != setting.decode.kind
    assert setting.decode.engine.host_tokens == 7


def test_link_is_named_or_a_number():
    assert parse_link("12").bytes_per_s == 12e9
    assert parse_link("tcp").bytes_per_s < 1e9


def test_help_names_policies_mixes_and_slos(monkeypatch, capsys):
    assert simulate(monkeypatch, "--help") == 0
    text = capsys.readouterr().out
    assert all(name in text for name in ("pd_mooncake", "code-bursts", "tTTFT", "qwen3-32b", "examples:"))

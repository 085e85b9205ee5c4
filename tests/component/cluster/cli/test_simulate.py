"""`baton simulate` from its command line to its table, JSON and charts."""

import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cluster.cli.main import main
from cluster.simulation.traffic.named_mixes import MIXES
from tests.unit.cluster.simulation.engine.truth.tables import TABLE

SMALL = ("--requests", "60", "--policy", "round_robin,pd_least")


def simulate(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["baton", "simulate", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_table_has_a_line_per_policy_and_progress_goes_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(monkeypatch, *SMALL) == 0
    out, err = capsys.readouterr()
    heading, *lines = out.partition("\n\n")[0].splitlines()
    assert heading.split()[:4] == ["policy", "req/s", "good/s", "attained"]
    assert [line.split()[:2] for line in lines] == [["round_robin", "8"], ["pd_least", "4P4D"]]
    assert "[1/2] round_robin 8 at" in err and "60 requests" in err


def test_json_and_charts_hold_every_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    arguments = ("--rate", "20,1x", "--json", str(tmp_path / "out" / "run.json"), "--plots", str(tmp_path / "charts"))
    assert simulate(monkeypatch, *SMALL, *arguments) == 0
    document = json.loads((tmp_path / "out" / "run.json").read_text())
    runs = [(run["policy"], run["rate_per_s"]) for run in document["runs"]]
    assert [rate for _, rate in runs] == [20, 20, MIXES["tenants"].rate_per_s, MIXES["tenants"].rate_per_s]
    assert document["cluster"]["model"] == "qwen3-32b"
    charts = {file.name: ET.parse(file) for file in (tmp_path / "charts").iterdir()}
    assert set(charts) == {"goodput.svg", "attainment.svg", "ttft.svg", "tpot.svg"}


def test_truth_is_chosen_and_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    table = tmp_path / "table.json"
    table.write_bytes(msgspec.json.encode(TABLE))
    tpots, truths = [], []
    for name, arguments in enumerate(
        [(), ("--truth", "tiled"), ("--truth", str(table)), ("--noise", "0.1"), ("--stragglers", "2x1.5")]
    ):
        file = tmp_path / f"{name}.json"
        assert simulate(monkeypatch, *SMALL, "--json", str(file), *arguments) == 0
        document = json.loads(file.read_text())
        tpots.append(document["runs"][0]["tpot_s"]["p50"])
        truths.append(document["cluster"]["truth"])
    assert len(set(tpots)) == len(tpots)
    assert (truths[1]["form"], truths[3]["noise"]["sigma"], truths[4]["stragglers"]["number"]) == ("tiled", 0.1, 2)


def test_trace_is_replayed_again_and_again_until_there_are_enough(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        + "".join(f"2024-01-01 00:00:{second:02},500,5\n" for second in range(0, 60, 3))
    )
    assert simulate(monkeypatch, "--trace", str(trace), "--requests", "50", "--policy", "round_robin") == 0
    assert "trace.csv: 50 requests at 0.33/s" in capsys.readouterr().err


def test_highest_rate_is_searched(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
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
        (("--truth", "flat"), "'flat' is none of roofline, tiled and no file"),
        (("--truth", "pyproject.toml"), "no file with a table of step times"),
        (("--noise", "2"), "noise 2 is not between 0 and 1"),
        (("--stalls", "2x0.1"), "stalls 2x0.1"),
        (("--stragglers", "2"), "'2' is not two numbers"),
        (("--stragglers", "1.5x2"), "not a whole number"),
        (("--stragglers", "2x0.5"), "a factor of at least 1"),
        (("--stragglers", "9x2"), "9 stragglers are more than the 8 workers"),
    ],
)
def test_what_cannot_be_simulated_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[Any, ...], message: str
) -> None:
    assert simulate(monkeypatch, *arguments) == 2
    assert message in capsys.readouterr().err


def test_help_names_policies_mixes_and_slos(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(monkeypatch, "--help") == 0
    text = capsys.readouterr().out
    assert all(name in text for name in ("pd_mooncake", "code-bursts", "tTTFT", "qwen3-32b", "examples:"))

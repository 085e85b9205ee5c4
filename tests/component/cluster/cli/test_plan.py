"""`baton plan` from its command line to its table and JSON."""

import json
import sys
from pathlib import Path

import pytest

from cluster.cli.main import main

LOAD = ("--model", "qwen3-32b", "--gpu", "h100", "--rate", "100")
LENGTHS = ("--prompt", "2000", "--answer", "300")


def plan(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["baton", "plan", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_table_has_both_sizings_and_progress_goes_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths = ("--prompt", "1500", "--answer", "30")
    assert plan(monkeypatch, *LOAD, *lengths, "--slo", "2/0.1", "--cpu-seconds", "20") == 0
    out, err = capsys.readouterr()
    lines = {line.rpartition("  ")[0].split("  ")[0].strip(): line for line in out.splitlines()}
    assert ["computed", "simulated"] in [line.split() for line in out.splitlines()]
    assert {"prefill workers", "decode workers", "P:D", "GPUs", "$ per million tokens"} <= lines.keys()
    assert "Bottleneck: prefill" in out and "requests/s" in out
    assert "req/s: 100.0 % within SLO" in err


def test_json_has_every_figure_and_computing_alone_is_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(monkeypatch, *LOAD, *LENGTHS, "--no-simulation", "--json", "--price", "2", "--tp", "2") == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert err == ""
    assert document["answer"] == document["computed"]["pools"]
    assert document["simulated"] is None
    assert document["computed"]["costs"]["per_hour"] == 2.0 * document["computed"]["num_devices"]
    assert document["bottleneck"] == {"pool": "prefill", "bound": "ttft"}


def test_mix_and_trace_and_folder_are_planned(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        + "".join(f"2024-01-01 00:00:{second:02},500,5\n" for second in range(60))
    )
    for traffic in (("--mix", "chat"), ("--trace", str(trace))):
        assert plan(monkeypatch, *LOAD, *traffic, "--no-simulation", "--json") == 0
    chat, recorded = (json.loads(text) for text in capsys.readouterr().out.replace("}\n{", "}\x00{").split("\x00"))
    assert chat["demand"]["hit_share"] > 0.3
    assert (recorded["demand"]["prompt"], recorded["demand"]["output"]) == (500, 5)
    folder = ("--model", "conf/models/baton-demo", "--gpu", "l40s", "--rate", "5")
    assert plan(monkeypatch, *folder, *LENGTHS, "--slo", "interactive", "--cpu-seconds", "3") == 0
    out = capsys.readouterr().out
    assert "baton-demo on workers of 1 l40s (no price known: give --price)" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--gpu", "h101"), "unknown GPU 'h101': give one of a100, h100"),
        (("--model", "gpt-5"), "unknown model 'gpt-5'"),
        (("--model", "/nowhere"), "/nowhere/config.json"),
        (("--rate", "0"), "more than 0"),
        (("--rate", "nan"), "more than 0"),
        (("--target", "1"), "is not between 0 and 1"),
        (("--slo", "soon"), "'soon' is not an SLO"),
        (("--slo", "0/0.05"), "must be more than 0"),
        (("--slo", "0.01/0.05"), "s are the least"),
        (("--slo", "1/0.001"), "ms are the least"),
        (("--model", "llama-3.1-405b", "--gpu", "l4"), "leave no memory for KV blocks"),
        (("--tp", "0"), "at least 1 device"),
        (("--tp", "3"), "64 heads cannot be divided"),
        (("--mix", "chat"), "give the traffic as"),
        (("--hit", "1"), "less than 1"),
        (("--prompt", "0"), "each from 1 to"),
        (("--price", "-1"), "must be more than 0"),
        (("--link", "-3"), "is not a link"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert plan(monkeypatch, *LOAD, *LENGTHS, "--no-simulation", *arguments) == 2
    out, err = capsys.readouterr()
    assert message in err and out == "" and err.count("\n") == 1


def test_help_names_models_devices_prices_and_slos(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(monkeypatch, "--help") == 0
    text = capsys.readouterr().out
    assert all(name in text for name in ("llama-3-70b", "b200 $6", "interactive", "400g", "examples:"))

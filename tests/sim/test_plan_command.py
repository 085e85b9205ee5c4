"""`baton plan` from its command line to its table and JSON."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.cli.main import main
from cluster.cli.reader import READER_HAS_LEFT

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
    assert plan(monkeypatch, *LOAD, *lengths, "--slo", "2/0.1", "--cpu-seconds", "15") == 0
    out, err = capsys.readouterr()
    lines = {line.rpartition("  ")[0].split("  ")[0].strip(): line for line in out.splitlines()}
    assert ["computed", "simulated"] in [line.split() for line in out.splitlines()]
    assert {"prefill workers", "decode workers", "P:D", "GPUs", "$ per million tokens"} <= lines.keys()
    assert "Bottleneck: prefill" in out and "requests/s" in out
    assert "90.0 % (target)" in lines["attained"] and "% (cell)" in lines["attained"]
    assert "handoffs if all are handed over, GB/s" in lines
    assert "At this load a decode worker has" in out and "those of this cell at its" in out
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


def test_figures_are_those_that_were_computed_by_hand(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The column B200 of docs/capacity.md, by the formulas of that page and of router/prediction/roofline.py."""
    load = ("--model", "llama-3-70b-fp8", "--gpu", "b200", "--rate", "200000", "--prompt", "1500", "--answer", "300")
    assert plan(monkeypatch, *load, "--slo", "standard", "--no-simulation", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    prefill, decode, computed = document["prefill_worker"], document["decode_worker"], document["computed"]
    known = {
        1500 / 2048 * 0.0913 + 0.0059: prefill["busy_s"],  # new * step_s(2048) / 2048 + attended * attended_s
        10.91: prefill["rate_per_s"],  # a search: TTFT binds
        0.792: prefill["busy"],
        306377 / 2058.2: decode["limits"]["memory"],
        130.23: decode["batch"],  # b + 1.632 * sqrt(b) = 148.86
        130.23 / (0.02906 * 299): decode["worker"]["rate_per_s"],
        0.1211: document["work_s"],
        1.752e6: document["num_running"],
        200_000 * (0.279e-3 + 206.25 * 3e-6) + 31_668 * 0.15e-3: computed["scheduler_cores"],
        184.3 / 0.7: computed["num_cells"],
        200_000 * 1500 * 327_680 / 2: computed["handoff_bytes_per_s"] / 2,
        200_000 / 31_668: computed["rate_per_device"],
        31_668 * 6 / 3600 / 200_000 / 1800 * 1e6: computed["costs"]["per_million_tokens"],
        31_668 * 6 / 3600 / 200_000 / 300 * 1e6: computed["costs"]["per_million_answer_tokens"],
    }
    assert list(known.values()) == pytest.approx(list(known), rel=5e-3)


def test_names_of_a_hub_and_of_the_driver_are_those_of_the_page(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    load = ("--rate", "100", *LENGTHS, "--no-simulation")
    assert plan(monkeypatch, "--model", "Qwen/Qwen3-32B", "--gpu", "NVIDIA H100 80GB HBM3", *load) == 0
    long = capsys.readouterr().out
    assert plan(monkeypatch, *LOAD[:4], *load) == 0
    assert long == capsys.readouterr().out


def test_step_at_this_load_is_not_longer_than_at_the_most(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(monkeypatch, *LOAD, *LENGTHS, "--no-simulation", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    now, most = document["at_this_load"], document["decode_worker"]
    assert 0 < now["batch"] <= most["batch"] and 0 < now["step_s"] <= most["step_s"]


def test_reader_that_leaves_is_no_error() -> None:
    command = " ".join(
        ["-c", "'from cluster.cli.main import main; main()'", "plan", *LOAD, *LENGTHS, "--no-simulation"]
    )
    ran = subprocess.run(
        ["bash", "-c", f"{sys.executable} {command} | true; exit ${{PIPESTATUS[0]}}"], capture_output=True, text=True
    )
    assert (ran.returncode, ran.stderr) == (READER_HAS_LEFT, "")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--rate", "1e308"),
        ("--rate", "1e-300"),
        ("--link", "nan"),
        ("--link", "inf"),
        ("--price", "1e308"),
        ("--tp", "16"),
    ],
)
def test_number_that_no_cluster_has_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    assert plan(monkeypatch, *LOAD, *LENGTHS, "--no-simulation", option, value) == 2
    assert option.strip("-") in capsys.readouterr().err


def test_config_that_nests_without_end_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("[" * 100_000)
    assert plan(monkeypatch, *LOAD[2:], "--model", str(tmp_path), *LENGTHS, "--no-simulation") == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_answers_of_one_token_are_that_short(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(monkeypatch, *LOAD, "--prompt", "2000", "--answer", "1", "--no-simulation", "--json") == 0
    assert json.loads(capsys.readouterr().out)["demand"]["output"] == 1


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
        (("--gpu", "NVIDIA GH200 480GB"), "unknown GPU 'nvidia gh200 480gb'"),
        (("--gpu", "NVIDIA L40"), "unknown GPU 'nvidia l40'"),
        (("--gpu", "NVIDIA H100 PCIe"), "has other figures than the h100 of 80 GiB"),
        (("--gpu", "NVIDIA A100-SXM4-40GB"), "has other figures than the a100 of 80 GiB"),
        (("--slo", "500/50"), "give seconds, not milliseconds"),
        (("--model", "gpt-5"), "unknown model 'gpt-5'"),
        (("--model", "/nowhere"), "/nowhere/config.json"),
        (("--rate", "0"), "from 0.001 to 1e+09"),
        (("--rate", "nan"), "from 0.001 to 1e+09"),
        (("--target", "1"), "is not between 0 and 1"),
        (("--slo", "soon"), "'soon' is not an SLO"),
        (("--slo", "0/0.05"), "must be more than 0"),
        (("--slo", "0.01/0.05"), "s are the least"),
        (("--slo", "1/0.001"), "ms are the least"),
        (("--model", "llama-3.1-405b", "--gpu", "l4"), "leave no memory for KV blocks"),
        (("--tp", "0"), "1 to 8 devices"),
        (("--tp", "3"), "64 heads and 8 KV heads cannot be divided"),
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

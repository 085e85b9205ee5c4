"""`baton doctor` as a user runs it, with checks that take no time."""

import argparse
import json
from pathlib import Path

import pytest

from cluster.cli.operate import doctor
from cluster.doctor.checks import MachineCheck
from cluster.doctor.finding import CheckFinding, failed, ok, warning
from cluster.repository import REPO_ROOT

CONF = str(REPO_ROOT / "conf" / "local.yaml")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str, finding: CheckFinding) -> int:
    check = MachineCheck(name="one", run=lambda _: [finding], needs_config=False)
    monkeypatch.setattr(doctor, "CHECKS", [check])
    parser = argparse.ArgumentParser()
    doctor.add_arguments(parser)
    known = parser.parse_args(arguments)
    return int(known.run(known))


def test_findings_are_printed_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, CONF, finding=warning("clock", "it is wrong", "set it")) == 0
    out = capsys.readouterr().out
    assert "warning      clock" in out
    assert "to do: set it" in out
    assert out.endswith("\n1 warning, 1 ok\n")
    assert "\033" not in out  # no terminal


def test_failed_check_ends_the_command_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, CONF, "--json", finding=failed("clock", "it is wrong", "set it")) == 1
    config, clock = json.loads(capsys.readouterr().out)
    assert (config["result"], clock["result"], clock["todo"]) == ("ok", "failed", "set it")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("applications: [{args: {model: m, ingress: {prot: 1}}}]", "$.ingress"),
        ("applications: [{args: {model: m, admin: {port: 8000}}}]", "admin: port is 8000"),
        ("applications: []", "exactly one application"),
        ("applications: 3", "no Serve config"),
        ("[", "while parsing"),
        ("", "no Serve config"),
    ],
)
def test_config_that_cannot_be_used_is_told_in_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    conf = tmp_path / "conf.yaml"
    conf.write_text(text)
    assert run(monkeypatch, str(conf), finding=ok("clock", "right")) == 1
    assert says in capsys.readouterr().out


def test_colours_are_for_terminals() -> None:
    finding = failed("clock", "it is wrong", "set it")
    assert doctor.line(finding, colours=True).startswith("\033[31mfailed")
    assert doctor.line(finding, colours=False).startswith("failed ")

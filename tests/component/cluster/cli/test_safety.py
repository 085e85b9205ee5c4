"""`baton safety`: whether a folder is valid, what is found in a text, and what is different for a tenant."""

import json
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
import yaml

from api.safety.policy_folder import PolicyFolder
from cluster.cli import main as cli
from tests.component.safety_folder import safety_in

Baton = Callable[..., int]


@pytest.fixture
def baton(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Baton:
    """Runs `baton safety` with these arguments. Returns its exit status."""
    conf = tmp_path / "conf.yaml"
    safety = safety_in(tmp_path / "safety")
    conf.write_text(yaml.safe_dump({"applications": [{"args": {"model": "m", "safety": safety}}]}))

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["baton", "safety", *arguments, "--conf", str(conf)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0)

    return run


def test_valid_folder_is_told(baton: Baton, capsys: pytest.CaptureFixture[str]) -> None:
    assert baton("check") == 0
    assert "is valid: 1 policies, 0 tenants with overrides" in capsys.readouterr().out


def test_fault_of_the_folder_is_told(baton: Baton, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "safety/topics/medical.toml").write_text('disclaimer = "..."\nentries = []')
    assert baton("check") == 1
    assert "topic medical: the disclaimer has no letters" in capsys.readouterr().err


def test_what_is_found_in_a_text_is_told_with_its_reasons(
    baton: Baton, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", StringIO("Take 400 mg of aspirin. Pay with 4111 1111 1111 1111."))
    assert baton("check", "-") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["blocked"], found["masked"], found["disclaimers"]) == ([], {"card": 1}, ["medical"])
    assert found["topics"] == {"medical": ["400 mg", "aspirin"]}
    (tmp_path / "text").write_text("How to cook a glue soup?")
    assert baton("check", str(tmp_path / "text"), "--role", "user") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["blocked"], found["terms"], found["cut_at"]) == (["violence"], ["glue soup"], 14)


def test_overrides_can_be_written_again(baton: Baton, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert baton("override", "--tenant", "alice", "--allow", "glue soup") == 0
    assert PolicyFolder(tmp_path / "safety").data.of_tenant("alice").policy.allowed == ["glue soup"]
    assert baton("override", "--tenant", "alice") == 2
    assert baton("override", "--tenant", "../alice", "--allow", "glue soup") == 1
    assert "no name of a tenant" in capsys.readouterr().err

"""`baton audit` over a real PostgreSQL."""

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from api.safety.audit.event import SafetyEvent
from api.safety.policy import Threshold
from api.safety.policy_folder import PolicyFolder
from api.safety.verdict import Category
from api.state.lifecycle import ChatState
from cluster.cli import main as cli
from cluster.config.state import StateConfig
from tests.component.emptied import emptied
from tests.component.reached import reached
from tests.component.safety_folder import safety_in
from tests.unit.safety_events import a_safety_event

Baton = Callable[..., int]


@pytest.fixture
def state_config(postgres: str, redis: str, tmp_path: Path) -> dict[str, Any]:
    emptied(postgres)
    return {"database_url": postgres, "redis_url": redis, "data_dir": str(tmp_path)}


@pytest.fixture
def baton(state_config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Baton:
    """Runs `baton audit` with these arguments. Returns its exit status."""
    conf = tmp_path / "conf.yaml"
    conf.write_text(yaml.safe_dump({"applications": [{"args": {"model": "m", "state": state_config}}]}))

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["baton", "audit", *arguments, "--conf", str(conf)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0)

    return run


def appended(config: dict[str, Any], *events: SafetyEvent) -> None:
    async def append() -> None:
        async with reached(ChatState(StateConfig(**config))) as state:
            await state.stores.audit.append(events)

    asyncio.run(append())


def changed(postgres: str, statement: str) -> None:
    with psycopg.connect(postgres) as connection:
        connection.execute("SELECT set_config('app.tenant_id', 'alice', true)")
        connection.execute("ALTER TABLE safety_events DISABLE TRIGGER USER")
        connection.execute(statement.encode())
        connection.execute("ALTER TABLE safety_events ENABLE TRIGGER USER")


def test_sound_logs_are_ok(baton: Baton, state_config: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert (baton("verify"), capsys.readouterr().out) == (0, "")
    appended(state_config, a_safety_event(), a_safety_event(), a_safety_event(tenant="bob"))
    assert baton("verify") == 0
    alice, bob = capsys.readouterr().out.splitlines()
    assert alice.startswith("alice: 2 events, head 2:") and alice.endswith(", ok")
    assert bob.startswith("bob: 1 events, head 1:") and bob.endswith(", ok")


def test_broken_log_is_told_with_its_place(
    baton: Baton, state_config: dict[str, Any], postgres: str, capsys: pytest.CaptureFixture[str]
) -> None:
    appended(state_config, *(a_safety_event(tenant=tenant) for tenant in ("alice", "alice", "alice", "bob")))
    changed(postgres, "UPDATE safety_events SET action = 'passed' WHERE sequence = 2")
    assert baton("verify") == 1
    alice, bob = capsys.readouterr().out.splitlines()
    assert alice.startswith("alice: 1 events up to 1:") and "BROKEN at event 2: it was changed" in alice
    assert bob.endswith(", ok")
    assert baton("verify", "--tenant", "bob") == 0
    assert baton("verify", "--tenant", "alice") == 1


def test_noted_head_finds_a_log_that_has_lost_its_end(
    baton: Baton, state_config: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    appended(state_config, a_safety_event())
    assert baton("verify") == 0
    head = capsys.readouterr().out.split()[4].removesuffix(",")
    appended(state_config, a_safety_event())
    assert baton("verify", "--tenant", "alice", "--noted", head) == 0
    other = f"1:{'0' * 64}"
    assert baton("verify", "--tenant", "alice", "--noted", other) == 1
    assert baton("verify", "--tenant", "alice", "--noted", f"9:{'0' * 64}") == 1
    assert "it was noted, and is missing" in capsys.readouterr().out
    assert baton("verify", "--noted", head) == 2
    assert baton("verify", "--tenant", "alice", "--noted", "latest") == 2
    assert "a head is a sequence number, a colon and a hash" in capsys.readouterr().err


def test_tenant_without_events_is_an_error(baton: Baton, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("verify", "export"):
        assert baton(command, "--tenant", "nobody") == 1
        assert capsys.readouterr().err == "baton: tenant 'nobody' has no safety events\n"


def test_events_are_exported_as_lines(
    baton: Baton, state_config: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    first = a_safety_event(evidence="größer".encode())
    second = a_safety_event()
    appended(state_config, first, second, a_safety_event(tenant="bob"))
    assert baton("export", "--tenant", "alice") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["id"] for line in lines] == [first.id, second.id]
    assert lines[0]["verdicts"] == [{"stage": "lists", "version": "1", "scores": {"hate": 0.1}, "error": ""}]
    assert "evidence" not in lines[0] and len(lines[0]["hash"]) == 64
    assert baton("export", "--tenant", "alice", "--evidence") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["evidence"] for line in lines] == ["größer", None]


@pytest.fixture
def open_appeal(state_config: dict[str, Any]) -> str:
    """The id of an appeal of alice."""
    event = a_safety_event()
    appended(state_config, event)

    async def opened() -> str:
        async with reached(ChatState(StateConfig(**state_config))) as state:
            appeal = await state.stores.appeals.open("alice", event.id, "It is a recipe.")
        return appeal.id

    return asyncio.run(opened())


def test_reviewer_sees_what_was_found(
    baton: Baton, open_appeal: str, state_config: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    async def reviewed() -> None:
        async with reached(ChatState(StateConfig(**state_config))) as state:
            await state.stores.appeals.add_review("alice", open_appeal, b'{"second": "guard"}')

    asyncio.run(reviewed())
    assert baton("appeals", "--tenant", "alice") == 0
    assert json.loads(capsys.readouterr().out)["review"] == {"second": "guard"}


def test_decision_can_allow_a_term(
    baton: Baton, open_appeal: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    safety_in(tmp_path / "safety")
    asked = ("decide", open_appeal, "overturned", "--tenant", "alice", "--reviewer", "Rita")
    changes = ("--allow", "glue soup", "--threshold", "violence=off")
    conf = tmp_path / "conf.yaml"
    without = conf.read_text()
    assert baton(*asked, *changes) == 1
    assert "has no safety.folder" in capsys.readouterr().err
    described = yaml.safe_load(without)
    described["applications"][0]["args"]["safety"] = {"folder": str(tmp_path / "safety")}
    conf.write_text(yaml.safe_dump(described))
    assert baton("decide", open_appeal, "upheld", *asked[3:], *changes) == 2
    assert baton(*asked, "--threshold", "violence=never") == 2
    assert baton(*asked, "--allow", "") == 1
    assert baton("appeals", "--tenant", "alice") == 0
    assert open_appeal in capsys.readouterr().out, "what was refused has decided nothing"
    assert baton(*asked, *changes) == 0
    assert baton("export", "--tenant", "alice") == 0
    decision = json.loads(capsys.readouterr().out.splitlines()[-1])
    named = [(verdict["stage"], verdict["version"]) for verdict in decision["verdicts"]]
    assert named[2:] == [("reviewer", "Rita"), ("allow", "glue soup"), ("threshold", "violence=off")]
    changed = PolicyFolder(tmp_path / "safety").data
    assert changed.of_tenant("alice").policy.allowed == ["glue soup"]
    assert changed.of_tenant("alice").policy.threshold(Category.VIOLENCE) is Threshold.OFF
    assert changed.of_tenant("bob").policy.allowed == []


def test_config_that_is_none_is_told(baton: Baton, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "conf.yaml").write_text("applications: []")
    assert baton("verify") == 1
    assert capsys.readouterr().err.startswith("baton: ")

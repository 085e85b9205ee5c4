"""The page of clients says what is pinned and tried, and a driver that fails is told."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.clients import running
from tests.clients.catalogue import CLIENTS, FOLDER, QUICK, Client, client_named
from tests.clients.environments import command_of
from tests.clients.matrix import PAGE, page_with, written
from tests.clients.running import Endpoint, Outcome, outcomes, table

NOWHERE = Endpoint("http://127.0.0.1:9", "unused", "m")
CLIENT = client_named("openai-js")
PIN = re.compile(r"[A-Za-z0-9._-]+(\[[a-z,]+\])?==[A-Za-z0-9.!+_-]+( ;.*)?")


def test_page_is_current() -> None:
    assert page_with(written(), PAGE.read_text()) == PAGE.read_text(), "run `python -m tests.clients.matrix`"


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_everything_is_pinned_and_nothing_names_a_place(client: Client) -> None:
    for pins in client.pins:
        text = pins.read_text()
        assert not re.search(r"https?://(?!opencollective|github\.com|eslint)|file:|/home|/tmp|resolved", text), pins
        if pins.suffix == ".txt":
            assert [line for line in text.splitlines() if not PIN.fullmatch(line)] == []
    if client.is_javascript:
        locked = json.loads(client.pins[1].read_text())["packages"]
        assert {name: locked[f"node_modules/{name}"]["version"] for name in client.packages} == client.versions
        assert all("integrity" in package for name, package in locked.items() if name)


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_each_client_is_tried_where_users_look_first(client: Client) -> None:
    assert len({*client.flows}) == len(client.flows)
    does = {flow.partition(": ")[2].partition(",")[0] for flow in client.flows}
    assert {"unknown model", "wrong key"} <= does
    assert any(flow.startswith("structured output") for flow in does)
    assert client.name == "instructor-python" or {"answer", "stream", "tools", "several turns"} <= does
    assert client.name == "instructor-python" or "cancel in mid-stream" in does


def test_each_folder_belongs_to_a_client() -> None:
    others = {"__pycache__", "node", "coding_agents"}
    folders = {path.name for path in FOLDER.iterdir() if path.is_dir() and path.name not in others}
    assert folders == {client.folder.name for client in CLIENTS}
    assert {*QUICK} <= {client.name for client in CLIENTS}


def test_client_that_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tests.clients.environments.PLACE", tmp_path)
    with pytest.raises(FileNotFoundError, match="make clients-installed ONLY=openai-js"):
        command_of(CLIENT)


@pytest.mark.parametrize(
    ("program", "failed"),
    [
        ("", len(CLIENT.flows)),
        ('echo "some noise"; echo \'{"flow": "chat: answer", "ok": true, "detail": ""}\'', len(CLIENT.flows) - 1),
        ('echo \'{"flow": "chat: answer", "ok": false, "detail": "wrong"}\'', len(CLIENT.flows)),
        ('echo \'{"flow": "chat: sings", "ok": true, "detail": ""}\'', len(CLIENT.flows) + 1),
    ],
    ids=["says nothing", "ends early", "fails", "tells what it does not declare"],
)
def test_flow_that_does_not_pass_is_a_failure(monkeypatch: pytest.MonkeyPatch, program: str, failed: int) -> None:
    monkeypatch.setattr(running, "command_of", lambda client: ["sh", "-c", program])
    results = outcomes(CLIENT, NOWHERE)
    assert sum(not outcome.ok for outcome in results) == failed
    assert table(CLIENT, results).count("FAIL") == failed


def test_driver_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("driver", 1, b'{"flow": "chat: answer", "ok": true, "detail": ""}\n')

    monkeypatch.setattr(running, "command_of", lambda client: ["true"])
    monkeypatch.setattr(subprocess, "run", hang)
    results = outcomes(CLIENT, NOWHERE)
    assert results[0] == Outcome("chat: answer", ok=True, detail="")
    assert [outcome.ok for outcome in results[1:]] == [False] * (len(CLIENT.flows) - 1)
    assert "ended after" in results[1].detail

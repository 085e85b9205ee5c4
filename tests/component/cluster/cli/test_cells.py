"""`baton cells` as a user runs it, against a server that answers as an ingress does."""

import argparse
import json
import os
import subprocess
import sys

import msgspec
import pytest

from cluster.cell_states import CellStates
from cluster.cli import ray_store
from cluster.cli.cells import add_arguments, refusal, table
from cluster.config.environment import ADMIN_KEY_VARIABLE
from cluster.messages.ids import CellName
from cluster.messages.views import CellState, CellsView
from cluster.repository import REPO_ROOT
from tests.component.app_with_fakes import ADMIN_KEY, a_cell
from tests.unit.memory_store import MemoryStore

OPEN, DRAINING, AWAY = CellState.OPEN, CellState.DRAINING, CellState.AWAY


def cells(**states: CellState) -> CellsView:
    return CellsView(application="baton", cells=[a_cell(name, state) for name, state in states.items()])


ANSWERS = {
    "/baton/cells": (200, msgspec.json.encode(cells(a=OPEN, b=DRAINING))),
    "/open/baton/cells": (200, msgspec.json.encode(cells(a=OPEN, b=OPEN, c=AWAY))),
}


def baton_cells(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from cluster.cli.main import main; main()", "cells", *arguments]
    environment = os.environ | {ADMIN_KEY_VARIABLE: ADMIN_KEY}
    return subprocess.run(command, cwd=REPO_ROOT, env=environment, capture_output=True, text=True, check=False)


def test_each_cell_has_a_row() -> None:
    header, *rows = table(cells(a=OPEN, long_name=DRAINING)).splitlines()
    assert header.split("  ")[0] == "cell"
    assert [row.split() for row in rows] == [
        ["a", "open", "1", "1", "1", "3", "2"],
        ["long_name", "draining", "1", "1", "1", "3", "2"],
    ]


def test_cells_are_printed(server: str) -> None:
    done = baton_cells("--url", server)
    assert (done.returncode, done.stderr, len(done.stdout.splitlines())) == (0, "", 3)
    done = baton_cells("--url", server, "--json")
    assert [cell["name"] for cell in json.loads(done.stdout)["cells"]] == ["a", "b"]


@pytest.mark.parametrize(
    ("view", "name", "drains", "says"),
    [
        (cells(a=OPEN, b=OPEN), "c", True, "there is no cell 'c': the service has a, b"),
        (cells(a=OPEN, b=DRAINING, c=AWAY), "a", True, "no other cell than a is open"),
        (cells(a=OPEN), "a", True, "the service has only one cell"),
        (cells(a=OPEN, b=OPEN), "a", True, None),
        (cells(a=DRAINING, b=DRAINING), "a", False, None),
        (cells(a=DRAINING, b=OPEN), "a", True, None),
    ],
)
def test_cell_that_cannot_be_drained_is_refused(view: CellsView, name: str, drains: bool, says: str | None) -> None:
    why = refusal(view, name, drains=drains)
    assert why is None if says is None else why is not None and why.startswith(says)


def test_drain_that_meets_that_of_another_operator_is_taken_back(
    server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = MemoryStore()
    states = CellStates(store)
    monkeypatch.setattr(ray_store, "cell_states_in", lambda address, application, cell: states)
    monkeypatch.setenv(ADMIN_KEY_VARIABLE, ADMIN_KEY)
    parser = argparse.ArgumentParser()
    add_arguments(parser)

    def baton(*arguments: str) -> int:
        known = parser.parse_args([*arguments, "--url", f"{server}/open"])
        status: int = known.run(known)
        return status

    assert (baton("drain", "a"), baton("open", "a"), store.values) == (0, 0, {})

    def drain_b_elsewhere() -> None:
        store.before_put = lambda: None
        states.drain(CellName("b"))

    store.before_put = drain_b_elsewhere
    assert (baton("drain", "a"), list(store.values)) == (1, ["b"])
    assert "cell a was opened again" in capsys.readouterr().err
    assert baton("drain", "a") == 1  # the ingress has not heard of b yet
    assert (baton("drain", "b"), list(store.values)) == (0, ["b"])


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["drain"], 2, "name the cell: baton cells drain NAME"),
        (["drain", "a", "--url", "{server}"], 1, "no other cell than a is open"),
        (["open", "c", "--url", "{server}"], 1, "there is no cell 'c'"),
        (["open", "b", "--url", "{server}", "--ray", "here"], 1, "'here' is not an address of Ray"),
        (["open", "b", "--url", "{server}", "--ray", "127.0.0.1:1"], 1, "Ray does not answer at 127.0.0.1:1"),
        (["--url", "http://127.0.0.1:1"], 1, "no service answers at http://127.0.0.1:1"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(server: str, arguments: list[str], status: int, says: str) -> None:
    done = baton_cells(*(argument.format(server=server) for argument in arguments))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (status, "", 1)
    assert says in done.stderr

"""`baton cells` as a user runs it, against a server that answers as an ingress does."""

import json
import subprocess
import sys

import msgspec
import pytest

from cluster.cli.cells import refusal, table
from cluster.messages.views import CellState, CellsView
from cluster.repository import REPO_ROOT
from tests.component.app_with_fakes import a_cell

OPEN, DRAINING, AWAY = CellState.OPEN, CellState.DRAINING, CellState.AWAY


def cells(**states: CellState) -> CellsView:
    return CellsView(application="baton", cells=[a_cell(name, state) for name, state in states.items()])


ANSWERS = {"/baton/cells": (200, msgspec.json.encode(cells(a=OPEN, b=DRAINING)))}


def baton_cells(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from cluster.cli.main import main; main()", "cells", *arguments]
    return subprocess.run(command, cwd=REPO_ROOT, capture_output=True, text=True, check=False)


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

"""A run of the drills that is slower than the last one, or that lacks a row, is told so and leaves the document."""

from pathlib import Path

import pytest

from cluster.repository import REPO_ROOT
from tests.drills import report
from tests.drills.drill import Measured
from tests.drills.kv_clock import Back
from tests.drills.last_run import ALLOWED_S, compare, finish, parse
from tests.drills.matrix import CELLS
from tests.drills.report import PlaneMeasured, between, plane_table, table
from tests.nodes.faults import NODE_FAULTS

DOCUMENT = REPO_ROOT / "docs/drills.md"
SLOW = CELLS[20]
SECONDS = {"silence_s": 0.3, "bystander_silence_s": 1.0, "prefill_s": 0.0, "decode_s": 2.5, "whole_s": 24.4}


def measured(slow: dict[str, float] | None = None) -> list[Measured]:
    """All rows, one of them with other times."""
    rows = []
    for cell in CELLS:
        seconds = SECONDS | (slow or {} if cell == SLOW else {})
        row = Measured(cell, client="answered", leases_ended={"read": 1})
        row.silence_s, row.bystander_silence_s = seconds["silence_s"], seconds["bystander_silence_s"]
        row.kv_back = {
            "prefill 1": Back(0.0, seconds["prefill_s"]),
            "decode 1": Back(0.0, 0.0),
            "decode 2": Back(0.0, seconds["decode_s"]),
        }
        row.whole_s = seconds["whole_s"]
        rows.append(row)
    return rows


LAST = table(measured())


@pytest.mark.parametrize(
    ("slow", "column", "figures"),
    [
        ({"silence_s": 2.7}, "longest silence for it", ("2.7 s", "0.3 s")),
        ({"bystander_silence_s": 4.1}, "for others", ("4.1 s", "1.0 s")),
        ({"prefill_s": 4.1}, "prefill KV back after", ("4.1 s", "0.0 s")),
        ({"decode_s": 9.1}, "decode KV back after", ("9.1 s", "2.5 s")),
        ({"whole_s": 56.9}, "whole again after", ("56.9 s", "24.4 s")),
    ],
)
def test_row_that_takes_much_longer_is_named_with_both_figures(
    slow: dict[str, float], column: str, figures: tuple[str, str]
) -> None:
    now, last = figures
    assert compare(LAST, table(measured(slow))) == [f"{SLOW}: {column} {now}, which was {last} in the last run"]


@pytest.mark.parametrize(
    "slow",
    [{}, {"silence_s": 2.6, "bystander_silence_s": 4.0, "prefill_s": 4.0, "decode_s": 9.0, "whole_s": 56.8}],
)
def test_twice_the_time_and_some_seconds_is_no_news(slow: dict[str, float]) -> None:
    assert compare(LAST, table(measured(slow))) == []


def test_row_that_vanished_is_named_with_what_it_was() -> None:
    rows = [row for row in measured() if row.cell != SLOW]
    (complaint,) = compare(LAST, table(rows))
    assert complaint.startswith(f"{SLOW}: there is no such row; ")
    assert "whole again after 24.4 s" in complaint
    assert compare(table(rows), LAST) == []


def test_figure_that_vanished_is_named() -> None:
    rows = measured()
    rows[0].whole_s = None
    assert compare(LAST, table(rows)) == [f"{CELLS[0]}: whole again after -, which was 24.4 s in the last run"]


def test_rows_of_the_control_plane_are_compared() -> None:
    last = [PlaneMeasured("GCS SIGKILL", {"answered": 18}, silence_s=0.1, num_lost=0, whole_s=10.3)]
    now = [PlaneMeasured("GCS SIGKILL", {"answered": 18}, silence_s=2.3, num_lost=0, whole_s=28.7)]
    assert compare(plane_table(last), plane_table(now)) == [
        "GCS SIGKILL: longest silence 2.3 s, which was 0.1 s in the last run",
        "GCS SIGKILL: whole again after 28.7 s, which was 10.3 s in the last run",
    ]


@pytest.fixture
def document(tmp_path: Path) -> Path:
    file = tmp_path / "drills.md"
    file.write_text("Before.\n<!-- drills: begin -->\n\n<!-- drills: end -->\nAfter.\n")
    report.write(file, "drills", LAST)
    return file


def test_good_run_replaces_the_table(document: Path) -> None:
    now = table(measured({"whole_s": 30.0}))
    assert finish(document, {"drills": now}, has_passed=True) == []
    text = document.read_text()
    assert parse(between(text, "drills")) == parse(now)
    assert text.startswith("Before.\n") and text.endswith("\nAfter.\n")


@pytest.mark.parametrize(("whole_s", "has_passed"), [(90.0, True), (30.0, False)])
def test_bad_run_leaves_the_table_for_the_next_to_compare_with(
    document: Path, whole_s: float, has_passed: bool
) -> None:
    before = document.read_text()
    worse = finish(document, {"drills": table(measured({"whole_s": whole_s}))}, has_passed)
    assert bool(worse) == has_passed
    assert document.read_text() == before


def test_tables_of_the_document_can_be_compared() -> None:
    text = DOCUMENT.read_text()
    rows = parse(between(text, "drills"))
    assert list(rows) == list(map(str, CELLS))
    assert list(parse(between(text, "nodes"))) == list(NODE_FAULTS)
    assert compare(between(text, "drills"), LAST.replace("24.4 s", "99.9 s"))
    for mark in ("drills", "control plane", "nodes"):
        columns = {column for row in parse(between(text, mark)).values() for column in row}
        assert columns & ALLOWED_S.keys() >= {"whole again after"}

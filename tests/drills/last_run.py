"""Compares the tables of a run with those of the last run, which the document has. A run in which something takes much
longer than it did, or is missing, does not replace them: else the run after it would find nothing wrong.
"""

import re
from pathlib import Path

from tests.drills import report

MOST_TIMES = 2.0
"""Times the last figure that the new one may be. More lets a service get slower unnoticed, less fails in a busy hour of
the machine.
"""
ALLOWED_S = {
    "longest silence for it": 2.0,
    "for others": 2.0,
    "prefill KV back after": 4.0,
    "decode KV back after": 4.0,
    "longest silence": 2.0,
    "whole again after": 8.0,
}
"""Seconds that come on top, by column. Many figures are near 0, and an engine's start varies by some seconds."""
ROW_COLUMNS = ("moment", "fault")
"""What tells the rows apart, as far as a table has it."""
SECONDS = re.compile(r"(\d+\.\d+) s")

Row = dict[str, str]
"""Cells by column."""


def finish(document: Path, tables: dict[str, str], has_passed: bool) -> list[str]:
    """Put the tables of a run into the document, by their marks, if all drills have passed and the tables compare well
    with those that are there. Returns what is worse.
    """
    text = document.read_text()
    complaints = [complaint for mark, now in tables.items() for complaint in compare(report.between(text, mark), now)]
    if has_passed and not complaints:
        for mark, rows in tables.items():
            report.write(document, mark, rows)
    return complaints


def compare(last: str, now: str) -> list[str]:
    """What is worse now, a line for each figure and each row that vanished. `last`, `now`: Markdown tables. Nothing is
    said of a new row, nor of a column that only one of the tables has.
    """
    rows = parse(now)
    complaints = []
    for name, was in parse(last).items():
        if name not in rows:
            complaints.append(f"{name}: there is no such row; the last run had {', '.join(_figures(was))}")
            continue
        complaints += [
            f"{name}: {column} {rows[name][column]}, which was {was[column]} in the last run"
            for column, allowed_s in ALLOWED_S.items()
            if column in was and column in rows[name] and _is_worse(was[column], rows[name][column], allowed_s)
        ]
    return complaints


def parse(table: str) -> dict[str, Row]:
    """The rows of a Markdown table, which other text may surround, by their names."""
    lines = [line.strip() for line in table.splitlines() if line.strip().startswith("|")]
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    cells = [dict(zip(header, row, strict=True)) for row in rows]
    return {", ".join(row[column] for column in ROW_COLUMNS if column in row): row for row in cells}


def _is_worse(last: str, now: str, allowed_s: float) -> bool:
    last_s, now_s = _seconds(last), _seconds(now)
    return last_s is not None and (now_s is None or now_s > MOST_TIMES * last_s + allowed_s)


def _seconds(cell: str) -> float | None:
    found = SECONDS.fullmatch(cell)
    return float(found[1]) if found else None


def _figures(row: Row) -> list[str]:
    return [f"{column} {row[column]}" for column in ALLOWED_S if column in row]

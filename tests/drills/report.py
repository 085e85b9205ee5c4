"""The table that the drills end with."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.drills.drill import Measured

HEADER = [
    "moment",
    "fault",
    "the client sees",
    "longest silence for it",
    "for others",
    "prefill KV back after",
    "decode KV back after",
    "leases ended",
    "whole again after",
]

PLANE_HEADER = ["fault", "the clients see", "longest silence", "replicas lost", "whole again after"]


@dataclass(frozen=True)
class PlaneMeasured:
    """One drill of the control plane."""

    fault: str
    outcomes: dict[str, int]
    silence_s: float
    num_lost: int
    whole_s: float


def table(rows: list[Measured]) -> str:
    return _aligned([HEADER, *(_cells(row) for row in rows)])


def plane_table(rows: list[PlaneMeasured]) -> str:
    return _aligned([PLANE_HEADER, *(_plane_cells(row) for row in rows)])


def _aligned(cells: list[list[str]]) -> str:
    """Markdown, aligned for the terminal."""
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    lines = [" | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in cells]
    rule = "|".join("-" * (width + 2) for width in widths)
    return "\n".join([f"| {lines[0]} |", f"|{rule}|", *(f"| {line} |" for line in lines[1:])])


def line(row: Measured) -> str:
    """One line for the log."""
    return "; ".join(f"{name}: {text}" for name, text in zip(HEADER, _cells(row), strict=True))


def write(file: Path, mark: str, rows: str) -> None:
    """Replace what stands between the two marks of the document."""
    before, _, after = _parts(file.read_text(), mark)
    file.write_text(f"{before}{_begin(mark)}\n{machine()}\n\n{rows}\n{_end(mark)}{after}")


def between(text: str, mark: str) -> str:
    """What stands between the two marks of a document."""
    return _parts(text, mark)[1]


def _parts(text: str, mark: str) -> tuple[str, str, str]:
    """Before, between and after the two marks."""
    before, rest = text.split(_begin(mark))
    inside, after = rest.split(_end(mark))
    return before, inside, after


def _begin(mark: str) -> str:
    return f"<!-- {mark}: begin -->"


def _end(mark: str) -> str:
    return f"<!-- {mark}: end -->"


def machine() -> str:
    memory_gib = psutil.virtual_memory().total / 2**30
    return f"Measured on {os.cpu_count()} cores of {_cpu_model()}, {memory_gib:.0f} GiB of memory, no GPU."


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _cells(row: Measured) -> list[str]:
    return [
        row.cell.moment,
        row.cell.fault,
        f"{row.client}; FAILED: {row.failure}" if row.failure else row.client,
        _seconds(row.silence_s),
        _seconds(row.bystander_silence_s),
        *(_seconds(_slowest(row, pool)) for pool in ("prefill", "decode")),
        _numbers(row.leases_ended),
        _seconds(row.whole_s),
    ]


def _plane_cells(row: PlaneMeasured) -> list[str]:
    seen = ", ".join(f"{number} {outcome}" for outcome, number in row.outcomes.items())
    return [row.fault, seen, _seconds(row.silence_s), str(row.num_lost), _seconds(row.whole_s)]


def _numbers(of_leases: dict[str, int] | None) -> str:
    if of_leases is None:
        return "-"
    return ", ".join(f"{number} {how}" for how, number in of_leases.items() if number) or "none"


def _slowest(row: Measured, pool: str) -> float | None:
    return max((b.latest_s for worker, b in (row.kv_back or {}).items() if worker.startswith(pool)), default=None)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"

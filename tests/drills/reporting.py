"""The tables of what drills have measured: shown at the end of a run, and compared with a document that they go to."""

from pathlib import Path

import pytest

from tests.drills import last_run, report
from tests.drills.drill import Measured

CONTROL_PLANE, NODES = "control plane", "nodes"
"""Marks of tables in the document, beside that of the matrix."""
MEASURED = pytest.StashKey[list[Measured]]()
PLANE_MEASURED = pytest.StashKey[dict[str, list[report.PlaneMeasured]]]()
"""By mark."""
WORSE = pytest.StashKey[list[str]]()
"""What is worse than in the last run."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--drills-report",
        type=Path,
        default=None,
        help="compare the drills' tables with this document, and write them there",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[MEASURED] = []
    tables: dict[str, list[report.PlaneMeasured]] = {CONTROL_PLANE: [], NODES: []}
    config.stash[PLANE_MEASURED] = tables


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A run that writes a report fails if it compares badly with the last one (last_run.py)."""
    target = session.config.getoption("--drills-report")
    tables = _tables(session.config)
    if target is None or not tables:
        return
    worse = last_run.finish(target, tables, has_passed=exitstatus == pytest.ExitCode.OK)
    session.config.stash[WORSE] = worse
    if worse:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for mark, rows in _tables(config).items():
        terminalreporter.section(mark)
        terminalreporter.write_line(rows)
    if worse := config.stash.get(WORSE, []):
        terminalreporter.section("FAILED: worse than the last run", red=True, bold=True)
        for complaint in worse:
            terminalreporter.write_line(complaint, red=True)


def _tables(config: pytest.Config) -> dict[str, str]:
    """What was measured, by the mark of the table in the document."""
    measured = config.stash[MEASURED]
    tables = {mark: report.plane_table(rows) for mark, rows in config.stash[PLANE_MEASURED].items() if rows}
    return ({"drills": report.table(measured)} if measured else {}) | tables


@pytest.fixture
def all_measured(request: pytest.FixtureRequest) -> list[Measured]:
    return request.config.stash[MEASURED]


@pytest.fixture
def plane_measured(request: pytest.FixtureRequest) -> list[report.PlaneMeasured]:
    return request.config.stash[PLANE_MEASURED][CONTROL_PLANE]


@pytest.fixture
def nodes_measured(request: pytest.FixtureRequest) -> list[report.PlaneMeasured]:
    return request.config.stash[PLANE_MEASURED][NODES]

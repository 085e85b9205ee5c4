"""The table that the drills of nodes end with."""

from pathlib import Path

import pytest

from tests.drills import last_run, report

MARK = "nodes"
"""Of the table in the document."""
MEASURED = pytest.StashKey[list[report.PlaneMeasured]]()
WORSE = pytest.StashKey[list[str]]()
"""What is worse than in the last run."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--nodes-report",
        type=Path,
        default=None,
        help="compare the table of the drills of nodes with this document, and write it there",
    )


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A run that writes a report fails if it compares badly with the last one (last_run.py)."""
    target = session.config.getoption("--nodes-report", default=None)
    measured = session.config.stash.get(MEASURED, [])
    if target is None or not measured:
        return
    tables = {MARK: report.plane_table(measured)}
    worse = last_run.finish(target, tables, has_passed=exitstatus == pytest.ExitCode.OK)
    session.config.stash[WORSE] = worse
    if worse:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if measured := config.stash.get(MEASURED, []):
        terminalreporter.section(MARK)
        terminalreporter.write_line(report.plane_table(measured))
    for complaint in config.stash.get(WORSE, []):
        terminalreporter.write_line(f"worse than the last run: {complaint}", red=True)


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> list[report.PlaneMeasured]:
    return request.config.stash.setdefault(MEASURED, [])

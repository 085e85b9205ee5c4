from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.drills import last_run, report
from tests.drills.drill import Measured
from tests.drills.matrix import NUM_REPLICAS, SERVICE
from tests.drills.processes import DECODE, PREFILL, LiveProcesses
from tests.real_cluster.service import Service

MEASURED = pytest.StashKey[list[Measured]]()
PLANE_MEASURED = pytest.StashKey[list[report.PlaneMeasured]]()
WORSE = pytest.StashKey[list[str]]()
"""What is worse than in the last run."""
START_TIMEOUT_S = 480.0
"""Twice the processes that the cluster tests start, on the same cores."""
WHOLE_WITHIN_S = 120.0
MEASURED_WITHIN_S = 15.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--drills-report",
        type=Path,
        default=None,
        help="compare the drills' tables with this document, and write them there",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[MEASURED] = []
    config.stash[PLANE_MEASURED] = []


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A run that writes a report fails if it compares badly with the last one (last_run.py)."""
    target = session.config.getoption("--drills-report", default=None)
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
    measured, plane_measured = config.stash.get(MEASURED, []), config.stash.get(PLANE_MEASURED, [])
    return ({"drills": report.table(measured)} if measured else {}) | (
        {"control plane": report.plane_table(plane_measured)} if plane_measured else {}
    )


class Range:
    """Where drills are held: one service for all of them, started anew when a drill leaves it broken."""

    def __init__(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self._folders = tmp_path_factory
        self._service: Service | None = None

    def live(self) -> LiveProcesses:
        """A whole service."""
        if self._service is not None:
            try:
                return _quiet(LiveProcesses(self._service), WHOLE_WITHIN_S)
            except TimeoutError:
                self.stop()
        self._service = Service(self._folders.mktemp("drills"), SERVICE)
        self._service.wait_until_ready(START_TIMEOUT_S)
        return _quiet(LiveProcesses(self._service), START_TIMEOUT_S)

    def stop(self) -> None:
        service, self._service = self._service, None
        if service is not None:
            left = service.stop()
            assert not left, f"still running after Ctrl-C: {left}"


def _quiet(live: LiveProcesses, timeout_s: float) -> LiveProcesses:
    live.wait_until_whole(NUM_REPLICAS, timeout_s)
    with suppress(TimeoutError):  # a link whose speed cannot be told is not measured for ever
        live.wait_until_quiet(NUM_REPLICAS[PREFILL] * NUM_REPLICAS[DECODE], MEASURED_WITHIN_S)
    return live


@pytest.fixture(scope="package")
def drill_range(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Range]:
    one = Range(tmp_path_factory)
    yield one
    one.stop()


@pytest.fixture
def live(drill_range: Range) -> LiveProcesses:
    return drill_range.live()


@pytest.fixture
def all_measured(request: pytest.FixtureRequest) -> list[Measured]:
    return request.config.stash.setdefault(MEASURED, [])


@pytest.fixture
def plane_measured(request: pytest.FixtureRequest) -> list[report.PlaneMeasured]:
    return request.config.stash.setdefault(PLANE_MEASURED, [])

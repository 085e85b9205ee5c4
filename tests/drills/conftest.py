from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.drills.matrix import NUM_REPLICAS, SERVICE
from tests.drills.processes import DECODE, PREFILL, LiveProcesses
from tests.real_cluster.service import Service

START_TIMEOUT_S = 480.0
"""Twice the processes that the cluster tests start, on the same cores."""
WHOLE_WITHIN_S = 120.0
MEASURED_WITHIN_S = 15.0


class Range:
    """Where drills are held: one service for all of them, started anew when a drill leaves it broken."""

    def __init__(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self._folders = tmp_path_factory
        self._service: Service | None = None

    def live(self) -> LiveProcesses:
        """A whole service."""
        if self._service is not None:
            live = LiveProcesses(self._service)
            try:
                live.wait_until_whole(NUM_REPLICAS, WHOLE_WITHIN_S)
            except TimeoutError:
                self.stop()
            else:
                return live
        return self._started()

    def stop(self) -> None:
        service, self._service = self._service, None
        if service is not None:
            left = service.stop()
            assert not left, f"still running after Ctrl-C: {left}"

    def _started(self) -> LiveProcesses:
        self._service = Service(self._folders.mktemp("drills"), SERVICE)
        self._service.wait_until_ready(START_TIMEOUT_S)
        live = LiveProcesses(self._service)
        live.wait_until_whole(NUM_REPLICAS, START_TIMEOUT_S)
        # All links are of one class, which is measured once. Their speed may be too high to be told
        with suppress(TimeoutError):
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

"""Ray's own processes, the Scheduler, or all engines die or hang, on a cluster of two nodes: no stream is lost, no
replica that is well is replaced, and what dies afterwards is replaced (control_plane.py).
"""

import logging
from collections.abc import Iterator

import pytest

from tests.drills.client import ANSWERED
from tests.drills.control_plane import PLANE_FAULTS
from tests.drills.report import PlaneMeasured
from tests.drills.struck import replicas, struck
from tests.drills.two_nodes import NUM_REPLICAS, TwoNodes
from tests.real_cluster.service import DECODE_PROCESS, wait_for

logger = logging.getLogger("baton.drills")

pytestmark = [pytest.mark.timeout(900), pytest.mark.full_matrix]

START_TIMEOUT_S = 300.0
HEALS_WITHIN_S = 120.0


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    service = TwoNodes(tmp_path_factory.mktemp("two_nodes"))
    try:
        service.wait_until_ready(START_TIMEOUT_S)
        service.live.wait_until_whole(NUM_REPLICAS, START_TIMEOUT_S)
        yield service
    finally:
        left = service.stop()
    assert not left, f"still running after the nodes were switched off: {left}"


@pytest.mark.parametrize("name", PLANE_FAULTS)
def test_control_plane(two_nodes: TwoNodes, name: str, plane_measured: list[PlaneMeasured]) -> None:
    fault = PLANE_FAULTS[name]
    two_nodes.live.wait_until_whole(NUM_REPLICAS, HEALS_WITHIN_S)
    costs = fault.costs(two_nodes)
    number = list(PLANE_FAULTS).index(name)
    found = struck(two_nodes, name, number, lambda: fault.strike(two_nodes), NUM_REPLICAS, fault.whole_s)
    plane_measured.append(found.measured)
    logger.info("%s", found.measured)
    assert set(found.measured.outcomes) == {ANSWERED}, found.errors[:3]
    assert found.lost == costs
    assert found.measured.silence_s < fault.silence_s
    _require_healing(two_nodes)


def _require_healing(service: TwoNodes) -> None:
    """A worker that dies now is replaced, and nobody else."""
    service.live.wait_until_whole(NUM_REPLICAS, HEALS_WITHIN_S)
    before = replicas(service)
    killed = service.processes(DECODE_PROCESS)[0]
    killed.kill()
    wait_for(lambda: not killed.is_running(), HEALS_WITHIN_S)
    service.live.wait_until_whole(NUM_REPLICAS, HEALS_WITHIN_S)
    assert before - replicas(service) == {killed}

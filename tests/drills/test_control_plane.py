"""Ray's own processes, the Scheduler, or all engines die or hang, on a cluster of two nodes: no stream is lost, no
replica that is well is replaced, and what dies afterwards is replaced (control_plane.py).
"""

import logging
import time
from collections.abc import Iterator

import httpx
import psutil
import pytest

from tests.drills.client import ANSWERED
from tests.drills.control_plane import PLANE_FAULTS
from tests.drills.processes import DECODE, PREFILL, PROCESS_NAMES, SCHEDULER
from tests.drills.report import PlaneMeasured
from tests.drills.traffic import Traffic
from tests.drills.two_nodes import NUM_REPLICAS, TwoNodes
from tests.real_cluster.service import DECODE_PROCESS, wait_for

logger = logging.getLogger("baton.drills")

pytestmark = [pytest.mark.timeout(900), pytest.mark.full_matrix]

START_TIMEOUT_S = 300.0
HEALS_WITHIN_S = 120.0
SEEDS_PER_DRILL = 52
"""More than its streams, so that no drill finds the prompts of another one in a cache."""


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
    before = _replicas(two_nodes)
    costs = fault.costs(two_nodes)
    traffic = Traffic(two_nodes.host, two_nodes.port, seed=SEEDS_PER_DRILL * list(PLANE_FAULTS).index(name))
    try:
        wait_for(lambda: traffic.outcomes[ANSWERED] > 0, HEALS_WITHIN_S)
        struck_at = time.monotonic()
        fault.strike(two_nodes)
        wait_for(lambda: _is_staffed(two_nodes), fault.whole_s, interval_s=0.5)
        whole_s = time.monotonic() - struck_at
    finally:
        traffic.stop()
    lost = before - _replicas(two_nodes)
    silence_s = traffic.longest_silence_s(struck_at)
    plane_measured.append(PlaneMeasured(name, dict(traffic.outcomes), silence_s, len(lost), whole_s))
    logger.info("%s", plane_measured[-1])
    assert set(traffic.outcomes) == {ANSWERED}, traffic.errors[:3]
    assert lost == costs
    assert silence_s < fault.silence_s
    _require_healing(two_nodes)


def _require_healing(service: TwoNodes) -> None:
    """A worker that dies now is replaced, and nobody else."""
    service.live.wait_until_whole(NUM_REPLICAS, HEALS_WITHIN_S)
    before = _replicas(service)
    killed = service.processes(DECODE_PROCESS)[0]
    killed.kill()
    wait_for(lambda: not killed.is_running(), HEALS_WITHIN_S)
    service.live.wait_until_whole(NUM_REPLICAS, HEALS_WITHIN_S)
    assert before - _replicas(service) == {killed}


def _replicas(service: TwoNodes) -> set[psutil.Process]:
    """Equal only to those with the same process ids and the same start."""
    return {process for name in PROCESS_NAMES.values() for process in service.processes(name)}


def _is_staffed(service: TwoNodes) -> bool:
    """All replicas run, and the Scheduler knows the workers: there may be requests."""
    try:
        workers = service.live.snapshot().by("pool", "baton_workers", deployment=SCHEDULER)
    except httpx.HTTPError:
        return False
    return workers == {pool: NUM_REPLICAS[pool] for pool in (PREFILL, DECODE)} and all(
        len(service.processes(PROCESS_NAMES[deployment])) == number for deployment, number in NUM_REPLICAS.items()
    )

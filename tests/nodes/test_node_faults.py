"""Nodes go and the network fails under a service of one prefill and two decode nodes (faults.py): no stream is lost,
and the autoscaler replaces what is gone.
"""

import logging
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.drills.client import ANSWERED
from tests.drills.processes import DECODE, INGRESS, PREFILL, PROCESS_NAMES, SCHEDULER, LiveProcesses
from tests.drills.report import PlaneMeasured
from tests.drills.traffic import Traffic
from tests.nodes.faults import NODE_FAULTS
from tests.nodes.ray_up import RayUp
from tests.real_cluster.service import wait_for

logger = logging.getLogger("baton.drills")

pytestmark = [pytest.mark.timeout(900), pytest.mark.full_matrix]

NUM_REPLICAS = {INGRESS: 1, SCHEDULER: 1, PREFILL: 1, DECODE: 2}
WHOLE_WITHIN_S = 300.0
"""A node is made anew within it, and its engine starts on two cores that serve beside it."""
SEEDS_PER_DRILL = 52
"""More than its streams, so that no drill finds the prompts of another one in a cache."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayUp]:
    running = RayUp(tmp_path_factory.mktemp("nodes"), {PREFILL: 1, DECODE: 2})
    try:
        running.deploy()
        wait_for(running.is_ready, WHOLE_WITHIN_S, interval_s=0.5)
        yield running
    finally:
        left = running.close()
    assert not left, f"still running after the nodes were switched off: {left}"


@pytest.mark.parametrize("name", NODE_FAULTS)
def test_node_fault(cluster: RayUp, name: str, measured: list[PlaneMeasured]) -> None:
    fault, live = NODE_FAULTS[name], LiveProcesses(cluster)
    live.wait_until_whole(NUM_REPLICAS, WHOLE_WITHIN_S)
    before = _replicas(cluster)
    seed = SEEDS_PER_DRILL * list(NODE_FAULTS).index(name)
    traffic = Traffic(cluster.host, cluster.port, seed, path=fault.path)
    try:
        wait_for(lambda: traffic.outcomes[ANSWERED] > 0, WHOLE_WITHIN_S)
        struck_at = time.monotonic()
        fault.strike(cluster)
        wait_for(lambda: _is_staffed(cluster), WHOLE_WITHIN_S, interval_s=0.5)
        whole_s = time.monotonic() - struck_at
    finally:
        traffic.stop()
    lost = before - _replicas(cluster)
    silence_s = traffic.longest_silence_s(struck_at)
    measured.append(PlaneMeasured(name, dict(traffic.outcomes), silence_s, len(lost), whole_s))
    logger.info("%s", measured[-1])
    assert set(traffic.outcomes) == {ANSWERED}, traffic.errors[:3]
    assert len(lost) == fault.num_lost
    assert silence_s < fault.silence_s


def _is_staffed(cluster: RayUp) -> bool:
    """All replicas run, and the Scheduler knows all workers."""
    has_all = all(len(cluster.processes(PROCESS_NAMES[one])) == number for one, number in NUM_REPLICAS.items())
    known = cluster.get("/readyz").json()
    return has_all and [known[f"{pool}_workers"] for pool in (PREFILL, DECODE)] == [1, 2]


def _replicas(cluster: RayUp) -> set[psutil.Process]:
    """Equal only to those with the same process ids and the same start."""
    return {process for name in PROCESS_NAMES.values() for process in cluster.processes(name)}

"""Nodes go and the network fails under a service of one ingress, one prefill and two decode nodes (faults.py): no
stream is lost but those of an ingress that is gone, and the autoscaler replaces what is gone.
"""

import logging
from collections.abc import Iterator

import pytest

from tests.drills.client import ANSWERED
from tests.drills.processes import DECODE, INGRESS, PREFILL, SCHEDULER, LiveProcesses
from tests.drills.report import PlaneMeasured
from tests.drills.struck import struck
from tests.nodes.faults import NODE_FAULTS
from tests.nodes.ray_up import RayUp
from tests.real_cluster.service import wait_for

logger = logging.getLogger("baton.drills")

pytestmark = [pytest.mark.timeout(900), pytest.mark.full_matrix]

NUM_REPLICAS = {INGRESS: 1, SCHEDULER: 1, PREFILL: 1, DECODE: 2}
WHOLE_WITHIN_S = 300.0
"""A node is made anew within it, and its engine starts on two cores that serve beside it."""


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
def test_node_fault(cluster: RayUp, name: str, nodes_measured: list[PlaneMeasured]) -> None:
    fault = NODE_FAULTS[name]
    LiveProcesses(cluster).wait_until_whole(NUM_REPLICAS, WHOLE_WITHIN_S)
    number = list(NODE_FAULTS).index(name)
    found = struck(cluster, name, number, lambda: fault.strike(cluster), NUM_REPLICAS, WHOLE_WITHIN_S, fault.path)
    nodes_measured.append(found.measured)
    logger.info("%s", found.measured)
    outcomes = set(found.measured.outcomes)
    assert ANSWERED in outcomes and outcomes <= fault.outcomes, found.errors[:3]
    assert len(found.lost) == fault.num_lost
    assert found.measured.silence_s < fault.silence_s

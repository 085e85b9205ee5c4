"""Pools that size themselves, in the simulator: the production policy, session and Scheduler on a virtual clock."""

import pytest

from bench.scaling.autoscalers import BatonAutoscaler, FixedSizes
from bench.scaling.waves import waved
from cluster.config.scaling import PoolBounds, ScalingConfig
from cluster.messages.ids import Outcome
from cluster.simulation.experiment import Cluster
from cluster.simulation.pools.elastic_pools import SimulatedAutoscaler, Sizes, Starting
from cluster.simulation.results.summary import summary
from cluster.simulation.run import ElasticRun, simulate_elastic
from cluster.simulation.traffic.mixes import generate
from cluster.simulation.traffic.named_mixes import MIXES
from cluster.simulation.traffic.slos import parse_slos, slo_of
from cluster.simulation.traffic.workload import at_rate
from router.pending_placements import PendingPlacements
from router.state import RouterState

SLOS = parse_slos("mid")
PERIOD_S = 600.0
STARTING = Starting(start_s=20.0, drain_s=20.0)
CONFIG = ScalingConfig(
    prefill=PoolBounds(max=8), decode=PoolBounds(max=8), start_s=20.0, down_after_s=60.0, empty_s=10.0
)


def run(autoscaler: SimulatedAutoscaler, first: Sizes, per_s: float = 3.0, number: int = 2400) -> ElasticRun:
    cluster = Cluster(model="qwen3-32b", device="l40s", tensor_parallel=4, num_workers=sum(first))
    rows = generate(MIXES["poisson"], number, 0)
    scaled = [row.moved(row.arrival_s * MIXES["poisson"].rate_per_s / per_s - row.arrival_s) for row in rows]
    workload = at_rate(waved(scaled, PERIOD_S, 0.8), 1.0, slo_of(SLOS, cluster.isolated_prefill_s))
    return simulate_elastic(
        workload, cluster.split(first[0]), lambda: PendingPlacements(RouterState(SLOS)), autoscaler, STARTING
    )


@pytest.fixture(scope="module")
def scaled() -> ElasticRun:
    return run(BatonAutoscaler(CONFIG), (2, 2))


def test_pools_follow_the_load(scaled: ElasticRun) -> None:
    totals = [change.prefill + change.decode for change in scaled.changes]
    assert max(totals) >= min(totals) + 2
    assert len(scaled.changes) < 40


def test_autoscaling_attains_more_than_fixed_pools_of_about_as_many_workers(scaled: ElasticRun) -> None:
    mean = scaled.worker_s / scaled.lasted_s
    few = round(mean)
    fixed = run(FixedSizes(), (few - few // 2, few // 2))
    assert summary(scaled.records).attainment > summary(fixed.records).attainment


def test_no_request_fails_when_workers_are_stopped(scaled: ElasticRun) -> None:
    assert {record.outcome for record in scaled.records} <= {Outcome.FINISHED, Outcome.REJECTED}


def test_same_run_gives_the_same_records() -> None:
    first, again = (run(BatonAutoscaler(CONFIG), (1, 1), number=200) for _ in range(2))
    assert again.records == first.records
    assert again.worker_s == first.worker_s

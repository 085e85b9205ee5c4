import pytest
from vllm.v1.metrics.stats import SchedulerStats

from cluster.engine_steps import EngineSteps
from cluster.types import WorkerLoad
from kvtransfer.lease import LeaseEnd, stats_key
from kvtransfer.telemetry import Transfer

NIXL = {"bytes_transferred": [100], "transfer_duration": [0.1], stats_key(LeaseEnd.READ): ["a"]}


def record(steps: EngineSteps, connector_stats=None) -> None:
    stats = SchedulerStats(
        num_running_reqs=2, num_waiting_reqs=3, kv_cache_usage=0.5, kv_connector_stats=connector_stats
    )
    steps.record(stats, None)


def test_load_is_that_of_the_last_step():
    steps = EngineSteps(lambda ended: None)
    assert steps.load == WorkerLoad()
    record(steps)
    steps.record(None, None)
    assert steps.load == WorkerLoad(num_running=2, num_waiting=3, kv_cache_usage=0.5)


@pytest.mark.parametrize(
    "connector_stats",
    [NIXL, {"NixlConnector": NIXL, "OffloadingConnector": {"bytes": [[1, 2]]}}],
    ids=["alone", "beside tiers"],
)
def test_transfers_and_ended_leases_are_found(connector_stats):
    ended = []
    steps = EngineSteps(ended.extend)
    record(steps)
    record(steps, connector_stats)
    assert steps.transfers.since(0) == [Transfer(100, 0.1)]
    assert ended == [("a", LeaseEnd.READ)]

from typing import Any

import msgspec
import pytest
from prometheus_client import REGISTRY
from vllm.v1.metrics.stats import IterationStats, SchedulerStats

from cluster.engine.step_stats import EngineSteps
from cluster.engine_core.retention_log import RETENTION_KEY
from cluster.engine_core.step_samples import MAX_SAMPLES, STATS_KEY
from cluster.messages.ids import Pool
from cluster.messages.reports import StepSample, WorkerLoad
from cluster.messages.retention import RetentionCounts
from kvtransfer.lease_terms import LeaseEnd, LeaseId, stats_key
from kvtransfer.telemetry import PULLS_KEY, Pull, Transfer

NIXL = {
    "bytes_transferred": [100],
    "transfer_duration": [0.1],
    stats_key(LeaseEnd.READ): ["a"],
    PULLS_KEY: [["r", [0.3]]],
}


def record(steps: EngineSteps, connector_stats: dict[str, Any] | None = None) -> None:
    stats = SchedulerStats(
        num_running_reqs=2, num_waiting_reqs=3, kv_cache_usage=0.5, kv_connector_stats=connector_stats
    )
    steps.record(stats, None)


def test_load_is_that_of_the_last_step() -> None:
    steps = EngineSteps(Pool.DECODE, lambda ended: None)
    assert steps.load == WorkerLoad()
    record(steps)
    steps.record(None, None)
    assert steps.load == WorkerLoad(num_running=2, num_waiting=3, kv_cache_usage=0.5)


@pytest.mark.parametrize(
    "connector_stats",
    [NIXL, {"NixlConnector": NIXL, "OffloadingConnector": {"bytes": [[1, 2]]}}],
    ids=["alone", "beside tiers"],
)
def test_transfers_and_ended_leases_are_found(connector_stats: dict[str, Any]) -> None:
    ended: list[tuple[LeaseId, LeaseEnd]] = []
    steps = EngineSteps(Pool.DECODE, ended.extend)
    record(steps)
    record(steps, connector_stats)
    assert steps.transfers.since(0) == [Transfer(100, 0.1)]
    assert ended == [("a", LeaseEnd.READ)]
    assert steps.pulls.pop("r") == Pull(0.3)


def test_samples_of_steps_are_taken_once_and_only_the_latest_are_kept() -> None:
    steps = EngineSteps(Pool.DECODE, lambda ended: None)
    for number in range(MAX_SAMPLES + 1):
        record(steps, {STATS_KEY: [[number, 0, 1, 10, 0.01]]})
    samples = steps.take_samples()
    assert (len(samples), samples[-1]) == (MAX_SAMPLES, StepSample(MAX_SAMPLES, 0, 1, 10, 0.01))
    assert steps.take_samples() == []


def test_bytes_that_were_read_and_preemptions_are_counted() -> None:
    steps = EngineSteps(Pool.DECODE, lambda ended: None)
    before = counts()
    record(steps, NIXL)
    iteration = IterationStats()
    iteration.num_preempted_reqs = 2
    steps.record(None, iteration)
    assert [now - then for now, then in zip(counts(), before, strict=True)] == [100, 2]


@pytest.mark.parametrize("beside_tiers", [False, True])
def test_what_became_of_kept_blocks_is_shown(beside_tiers: bool) -> None:
    steps = EngineSteps(Pool.PREFILL, lambda ended: None)
    before = returned()
    for number in (2, 5):
        stats = {RETENTION_KEY: [list(msgspec.structs.astuple(RetentionCounts(kept_blocks=7, returned=number)))]}
        record(steps, {"NixlConnector": stats} if beside_tiers else stats)
        record(steps, NIXL)
    assert REGISTRY.get_sample_value("baton_kept_kv_blocks", {"pool": "prefill"}) == 7
    assert returned() - before == 5


def returned() -> float:
    labels = {"pool": "prefill", "outcome": "returned"}
    return REGISTRY.get_sample_value("baton_kept_conversations_total", labels) or 0.0


def counts() -> list[float]:
    names: list[tuple[str, dict[str, str]]] = [
        ("baton_transfer_bytes_total", {}),
        ("baton_engine_preemptions_total", {"pool": "decode"}),
    ]
    return [REGISTRY.get_sample_value(name, labels) or 0.0 for name, labels in names]

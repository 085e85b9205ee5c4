"""The connector's statistics of an engine's steps, without an engine."""

from types import SimpleNamespace

import msgspec
import pytest
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlConnectorMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import NixlPullConnectorScheduler
from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput

from cluster.engine_core.retention_log import RetentionLog, counts_in
from cluster.engine_core.step_samples import STATS_KEY, StepSampler
from cluster.messages.retention import RetentionCounts
from kvtransfer.connector import HandoffScheduler, HandoffStats, NixlConnector
from kvtransfer.telemetry import PULLS_KEY
from tests.expected import present


@pytest.fixture
def connector(monkeypatch: pytest.MonkeyPatch) -> NixlConnector:
    """The scheduler's half."""
    monkeypatch.setattr(
        NixlPullConnectorScheduler, "build_connector_meta", lambda self, scheduled: NixlConnectorMetadata()
    )
    connector = NixlConnector.__new__(NixlConnector)
    connector.connector_scheduler = HandoffScheduler.__new__(HandoffScheduler)
    connector.connector_scheduler._reqs_need_recv = {}
    connector.connector_scheduler.steps = StepSampler()
    connector.connector_scheduler.retention_log = RetentionLog()
    monkeypatch.setattr(connector, "connector_worker", None, raising=False)
    connector._connector_metadata = None
    return connector


def a_step(num_tokens: int) -> SchedulerOutput:
    step = SchedulerOutput.make_empty()
    step.scheduled_cached_reqs = CachedRequestData.make_empty()
    step.scheduled_new_reqs = [SimpleNamespace(req_id="a", num_computed_tokens=32)]
    step.num_scheduled_tokens = {"a": num_tokens}
    step.total_num_scheduled_tokens = num_tokens
    return step


def test_step_is_sampled_as_vllm_s_scheduler_describes_it(connector: NixlConnector) -> None:
    connector.build_connector_meta(a_step(10))
    stats = connector.get_kv_connector_stats()
    ((num_prefill, attended, num_decoding, context_tokens, seconds),) = present(stats).data[STATS_KEY]
    assert (num_prefill, attended, num_decoding, context_tokens) == (10, 10 * 32 + 55, 0, 0)
    assert 0.0 <= seconds < 1.0
    assert connector.get_kv_connector_stats() is None


def test_samples_join_what_the_worker_s_half_says(connector: NixlConnector) -> None:
    connector.build_connector_meta(a_step(10))
    of_worker = HandoffStats()
    of_worker.record(PULLS_KEY, ("r", 0.1))
    joined = of_worker.aggregate(connector.get_kv_connector_stats())
    assert (joined.data[PULLS_KEY], len(joined.data[STATS_KEY])) == ([("r", 0.1)], 1)


def test_samples_are_told_beside_tiers_too(connector: NixlConnector) -> None:
    both = MultiConnector.__new__(MultiConnector)
    both._connectors = [connector, SimpleNamespace(get_kv_connector_stats=lambda: None)]
    connector.build_connector_meta(a_step(10))
    assert len(both.get_kv_connector_stats().to_dict()["NixlConnector"][STATS_KEY]) == 1


def test_counts_of_kept_blocks_go_to_the_worker_when_they_change(connector: NixlConnector) -> None:
    counts = RetentionCounts()
    present(connector.retention_log).tell(lambda: msgspec.structs.replace(counts))
    assert connector.get_kv_connector_stats() is None
    counts.kept_blocks = 3
    present(connector.retention_log)._taken_at = 0.0
    of_worker = HandoffStats()
    of_worker.record(PULLS_KEY, ("r", 0.1))
    joined = of_worker.aggregate(present(connector.get_kv_connector_stats()))
    assert counts_in(joined.data) == counts
    assert connector.get_kv_connector_stats() is None

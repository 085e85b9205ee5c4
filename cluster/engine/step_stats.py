"""What vLLM's engine reports after each step: its load, the duration of steps, the transfers and leases that have
ended, and what became of kept KV blocks.
"""

from collections import deque
from collections.abc import Callable

from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.stats import IterationStats, SchedulerStats

from cluster.engine_core.retention_log import counts_in
from cluster.engine_core.step_samples import MAX_SAMPLES, samples_in
from cluster.messages.ids import Pool
from cluster.messages.reports import StepSample, WorkerLoad
from cluster.metrics.engines import PREEMPTIONS, RetentionMetrics
from cluster.metrics.handoffs import TRANSFER_BYTES
from cluster.network import strangers
from cluster.network.strangers import STRANGERS
from kvtransfer.lease_terms import LeaseEnd, LeaseId, ended_leases
from kvtransfer.telemetry import PullLog, TransferLog


class EngineSteps(StatLoggerBase):
    """A statistics logger of vLLM, which calls `record` once per step."""

    def __init__(self, pool: Pool, on_ended_leases: Callable[[list[tuple[LeaseId, LeaseEnd]]], None]) -> None:
        self._pool = pool
        self._on_ended_leases = on_ended_leases
        self.load = WorkerLoad()
        """The load after the last step."""
        self.transfers = TransferLog()
        self.pulls = PullLog()
        self._retention = RetentionMetrics(pool)
        self._samples: deque[StepSample] = deque(maxlen=MAX_SAMPLES)

    def take_samples(self) -> list[StepSample]:
        """Samples of the steps since the last call, at most the latest MAX_SAMPLES."""
        samples = list(self._samples)
        self._samples.clear()
        return samples

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: object = None,
        engine_idx: int = 0,
    ) -> None:
        if iteration_stats is not None and iteration_stats.num_preempted_reqs:
            PREEMPTIONS.labels(self._pool).inc(iteration_stats.num_preempted_reqs)
        if scheduler_stats is None:
            return
        self.load = WorkerLoad(
            num_running=scheduler_stats.num_running_reqs,
            num_waiting=scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs,
            kv_cache_usage=scheduler_stats.kv_cache_usage,
        )
        stats = scheduler_stats.kv_connector_stats or {}
        nixl = stats.get("NixlConnector", stats)  # with tiers, one entry per connector
        TRANSFER_BYTES.inc(self.transfers.record(nixl))
        self.pulls.record(nixl)
        self._samples.extend(samples_in(nixl))
        if (kept := counts_in(nixl)) is not None:
            self._retention.show(kept)
        STRANGERS.add(nixl.get(strangers.STATS_KEY, ()))
        if ended := ended_leases(nixl):
            self._on_ended_leases(ended)

    def log_engine_initialized(self) -> None:
        pass

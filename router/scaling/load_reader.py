"""LoadReader: the readings that the Scheduler gives to whoever sizes the pools. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import asdict
from math import isfinite
from typing import final

from cluster.messages.ids import Pool
from cluster.messages.scaling import EngineReading, LoadReading, PoolReading, ScalingAsk
from router.load.live_workers import LiveWorkers
from router.load.worker_state import WorkerState
from router.scaling.offered_load import OfferedLoad


@final
class LoadReader:
    def __init__(self, workers: LiveWorkers, offered: OfferedLoad, num_waiting: Callable[[], int]) -> None:
        self._workers = workers
        self._offered = offered
        self._num_waiting = num_waiting
        self._engines: dict[Pool, EngineReading | None] = dict.fromkeys(Pool)
        """The engines that each pool had last: a pool without workers may get some."""

    def read(self, ask: ScalingAsk, scheduler: str, now: float) -> LoadReading:
        """`scheduler` names this process. Retires the workers that the ask names, and no others."""
        self._workers.retire(ask.retiring, now)
        offered = self._offered
        return LoadReading(
            scheduler=scheduler,
            num_arrived=offered.num_arrived,
            num_good=offered.num_good,
            num_missed=offered.num_missed,
            num_waiting=self._num_waiting(),
            sample=offered.sample(),
            prefill=self._pool(Pool.PREFILL, now),
            decode=self._pool(Pool.DECODE, now),
        )

    def _pool(self, pool: Pool, now: float) -> PoolReading:
        workers = [state for state in self._workers.live(now) if state.pool is pool]
        if workers:
            self._engines[pool] = _engine_of(workers[-1])
        return PoolReading(
            open_requests={state.worker: len(state.charges) + state.running.num_unknown for state in workers},
            kv_share=_kv_share(workers),
            engine=self._engines[pool],
        )


def _engine_of(state: WorkerState) -> EngineReading:
    report = state.report
    return EngineReading(
        step_coefficients=asdict(state.model.kind.times),
        kv_capacity_tokens=report.shape.kv_capacity_tokens,
        max_step_tokens=state.max_step_tokens,
        max_running=min(report.max_requests, report.shape.max_running or report.max_requests),
    )


def _kv_share(workers: Iterable[WorkerState]) -> float:
    known = [state for state in workers if isfinite(state.kv_capacity)]
    return sum(state.kv_reserved for state in known) / max(1.0, sum(state.kv_capacity for state in known))

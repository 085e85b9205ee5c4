"""ElasticPools: simulated pools whose sizes follow an autoscaler, and what their workers cost.

A worker is paid for from its order to its end, and serves `start_s` after its order. A worker that is stopped gets no
new requests, finishes those that it has, and hands back those that still run after `drain_s`, as production workers do.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec

from cluster.messages.ids import Pool, WorkerId
from cluster.messages.scaling import LoadReading, ScalingAsk
from cluster.messages.scheduler_events import WorkerLeft
from cluster.simulation.pools.simulated_pools import SimulatedPools
from router.pending_placements import PendingPlacements

LOOK_S: Final = 1.0
"""Virtual seconds between two looks of an autoscaler, as in production. Longer reacts later; shorter takes CPU time."""

Sizes = tuple[int, int]
"""Prefill and decode workers."""


class SimulatedAutoscaler(Protocol):
    @property
    def retiring(self) -> Sequence[WorkerId]:
        """The workers that must get no new requests."""
        ...

    def targets(
        self, reading: LoadReading, present: Sizes, victims: Mapping[Pool, Sequence[WorkerId]], now: float, /
    ) -> Sizes:
        """The sizes that the pools are to have. `present`: the sizes that were asked for last. `victims`: the workers
        in the order in which they would be stopped.
        """
        ...


class Starting(msgspec.Struct, frozen=True, kw_only=True):
    """How long workers take to start and to stop."""

    start_s: float = 60.0
    """Seconds from the order of a worker to its first report."""
    drain_s: float = 60.0
    """Seconds that a worker which is stopped has for its requests."""


class SizeChange(msgspec.Struct, frozen=True):
    at_s: float
    prefill: int
    """Prefill workers that are asked for from now on."""
    decode: int


class ElasticPools:
    def __init__(
        self, pools: SimulatedPools, scheduler: PendingPlacements, autoscaler: SimulatedAutoscaler, starting: Starting
    ) -> None:
        """The pools begin with the sizes of their setting."""
        self._pools, self._scheduler, self._autoscaler, self._starting = pools, scheduler, autoscaler, starting
        self._loop = asyncio.get_running_loop()
        self._present: Sizes = (pools.setting.prefill.number, pools.setting.decode.number)
        self._starts: dict[Pool, list[asyncio.TimerHandle]] = {pool: [] for pool in Pool}
        """Workers that are starting, from the oldest to the newest."""
        self._paid_from: dict[WorkerId, float] = dict.fromkeys((worker.id for worker in pools.workers), 0.0)
        self._leaving: set[WorkerId] = set()
        self._paid_s = 0.0
        """Worker seconds of workers that have ended, and of starts that were taken back."""
        self.changes = [SizeChange(0.0, *self._present)]
        self._loop.call_later(LOOK_S, self._look)

    def worker_s(self) -> float:
        """Seconds of all workers so far, from the order to the end of each."""
        now = self._loop.time()
        starting = sum(
            now - (timer.when() - self._starting.start_s) for timers in self._starts.values() for timer in timers
        )
        return self._paid_s + starting + sum(now - began_at for began_at in self._paid_from.values())

    def _look(self) -> None:
        now = self._loop.time()
        reading = self._scheduler.state.load.read(ScalingAsk(list(self._autoscaler.retiring)), "simulated", now)
        targets = self._autoscaler.targets(reading, self._present, {pool: self._order(pool) for pool in Pool}, now)
        for pool, target, before in zip(Pool, targets, self._present, strict=True):
            for _ in range(target - before):
                self._starts[pool].append(self._loop.call_later(self._starting.start_s, self._begin, pool))
            for _ in range(before - target):
                self._stop_one(pool)
        if targets != self._present:
            self._present = targets
            self.changes.append(SizeChange(now, *targets))
        self._loop.call_later(LOOK_S, self._look)

    def _order(self, pool: Pool) -> list[WorkerId]:
        """Each simulated worker has a node of its own, so Serve would stop the oldest one first."""
        return [worker.id for worker in self._pools.workers if worker.pool is pool and worker.id not in self._leaving]

    def _begin(self, pool: Pool) -> None:
        timer = self._starts[pool].pop(0)
        worker = self._pools.begin(pool)
        self._paid_from[worker] = timer.when() - self._starting.start_s

    def _stop_one(self, pool: Pool) -> None:
        now = self._loop.time()
        if self._starts[pool]:
            timer = self._starts[pool].pop()
            timer.cancel()
            self._paid_s += now - (timer.when() - self._starting.start_s)
            return
        worker = self._order(pool)[0]
        self._leaving.add(worker)
        self._pools.leave(worker)
        self._scheduler.tell(WorkerLeft(worker=worker))
        self._end_when_empty(worker, now + self._starting.drain_s)

    def _end_when_empty(self, worker: WorkerId, by: float) -> None:
        now = self._loop.time()
        if now < by and self._pools.has_requests(worker):
            self._loop.call_at(min(by, now + LOOK_S), self._end_when_empty, worker, by)
            return
        self._pools.end(worker)
        self._leaving.discard(worker)
        self._paid_s += now - self._paid_from.pop(worker)

"""Retirement: which workers are emptied before they are stopped, and when they may be stopped. Pure.

Serve chooses the workers that it stops, and cannot be told which. So the order in which it would choose is predicted
(cluster/scaling/victims.py), the first workers of that order get only what no other worker takes, and the target is
lowered by as many as are empty. If the load comes back meanwhile, they are used again at once, and nothing was lost.
"""

from collections.abc import Mapping, Sequence
from itertools import takewhile

from cluster.messages.ids import Pool, WorkerId
from cluster.scaling.pool_sizes import PoolSizes


class Retirement:
    def __init__(self, empty_s: float) -> None:
        """`empty_s`: seconds after which a worker is stopped although it still has requests."""
        self._empty_s = empty_s
        self._since: dict[WorkerId, float] = {}
        """When each worker that is emptied was first named."""

    def let_go(self) -> None:
        """Nothing is stopped for now: all workers are used."""
        self._since = {}

    @property
    def retiring(self) -> list[WorkerId]:
        return list(self._since)

    def targets(
        self,
        wanted: PoolSizes,
        present: PoolSizes,
        victims: Mapping[Pool, Sequence[WorkerId]],
        num_open: Mapping[WorkerId, int],
        now: float,
    ) -> PoolSizes:
        """The sizes to ask Serve for. `victims`: the workers of each pool in the order in which Serve would stop them.
        `num_open`: the open requests of each worker that the Scheduler hears: any other one may have some.
        """
        leaving: dict[Pool, Sequence[WorkerId]] = {}
        num_starting = {}
        for pool in Pool:
            surplus, running = max(0, present.of(pool) - wanted.of(pool)), victims.get(pool, ())
            num_starting[pool] = min(surplus, max(0, present.of(pool) - len(running)))  # Serve stops these first
            leaving[pool] = running[: surplus - num_starting[pool]]
        self._since = {worker: self._since.get(worker, now) for workers in leaving.values() for worker in workers}

        def num_ready(pool: Pool) -> int:
            """Workers that may be stopped: only as many as come first in Serve's order."""
            ready = takewhile(
                lambda worker: num_open.get(worker) == 0 or now - self._since[worker] >= self._empty_s, leaving[pool]
            )
            return sum(1 for _ in ready)

        return PoolSizes.by_pool(
            lambda pool: max(wanted.of(pool), present.of(pool) - num_starting[pool] - num_ready(pool))
        )

"""What sizes the simulated pools: Baton's autoscaler, queue-depth scaling, or nobody.

Queue-depth scaling is the rule of Kubernetes' and Serve's autoscalers: for each pool by itself, the number of open
requests divided by a target per worker, rounded up; up at once, down to the highest wish of the last `down_after_s`. It
is given the best view that there is: Baton's own count of the requests on each worker, at this moment. Half of the
requests that wait in the Scheduler count for each pool.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from math import ceil

from cluster.config.scaling import PoolBounds, ScalingConfig
from cluster.messages.ids import Pool, WorkerId
from cluster.messages.scaling import LoadReading, PoolReading
from cluster.scaling.autoscaler import Autoscaler
from cluster.scaling.pool_sizes import PoolSizes
from cluster.simulation.pools.elastic_pools import Sizes

Victims = Mapping[Pool, Sequence[WorkerId]]


class BatonAutoscaler:
    """The autoscaler of production, on the simulator's clock."""

    def __init__(self, config: ScalingConfig) -> None:
        self._autoscaler = Autoscaler(config)

    @property
    def retiring(self) -> Sequence[WorkerId]:
        return self._autoscaler.retiring

    def targets(self, reading: LoadReading, present: Sizes, victims: Victims, now: float) -> Sizes:
        sizes = PoolSizes(*present)
        wanted = self._autoscaler.wanted(reading, sizes, now, now)
        return self._autoscaler.targets(wanted, sizes, victims, reading, now)


class QueueDepth:
    retiring: Sequence[WorkerId] = ()

    def __init__(self, config: ScalingConfig, per_prefill: float, per_decode: float) -> None:
        """`per_prefill`, `per_decode`: open requests that one worker of the pool is to have."""
        self._pools = (
            _QueuedPool(config.prefill, per_prefill, config.down_after_s),
            _QueuedPool(config.decode, per_decode, config.down_after_s),
        )

    def targets(self, reading: LoadReading, present: Sizes, victims: Victims, now: float) -> Sizes:
        prefill, decode = self._pools
        return (
            prefill.size(reading.prefill, reading.num_waiting / 2, present[0], now),
            decode.size(reading.decode, reading.num_waiting / 2, present[1], now),
        )


class _QueuedPool:
    def __init__(self, bounds: PoolBounds, per_worker: float, down_after_s: float) -> None:
        self._bounds, self._per_worker, self._down_after_s = bounds, per_worker, down_after_s
        self._wishes: deque[tuple[float, int]] = deque()

    def size(self, reading: PoolReading, num_waiting: float, present: int, now: float) -> int:
        depth = sum(reading.open_requests.values()) + num_waiting
        wish = min(max(ceil(depth / self._per_worker), self._bounds.min), self._bounds.max)
        self._wishes.append((now, wish))
        while self._wishes[0][0] < now - self._down_after_s:
            self._wishes.popleft()
        return max(wish, min(present, max(wish for _, wish in self._wishes)))


class FixedSizes:
    """The pools keep the sizes that they begin with."""

    retiring: Sequence[WorkerId] = ()

    def targets(self, reading: LoadReading, present: Sizes, victims: Victims, now: float) -> Sizes:
        return present

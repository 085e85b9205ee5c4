"""Autoscaler: from readings of the load to the sizes of both pools. Pure.

The policy says how many workers there should be (cluster/scaling/policy.py). Those that are too many are emptied before
they are stopped (cluster/scaling/retirement.py).
"""

from collections.abc import Mapping, Sequence

from cluster.config.scaling import ScalingConfig
from cluster.messages.ids import Pool, WorkerId
from cluster.messages.scaling import LoadReading
from cluster.scaling.policy import ScalingPolicy
from cluster.scaling.pool_sizes import PoolSizes
from cluster.scaling.retirement import Retirement


class Autoscaler:
    def __init__(self, config: ScalingConfig, correction: float = 1.0) -> None:
        """`correction`: the one to begin with (cluster/scaling/correction.py)."""
        self.policy = ScalingPolicy(config, correction)
        self._retirement = Retirement(config.empty_s)

    @property
    def retiring(self) -> list[WorkerId]:
        """The workers that must get no new requests."""
        return self._retirement.retiring

    def let_go(self) -> None:
        """Nothing is known of the load for now: all workers are used."""
        self._retirement.let_go()

    def wanted(self, reading: LoadReading, present: PoolSizes, now: float, wall_s: float) -> PoolSizes:
        """The sizes that the pools should have. `present`: those that were asked for last. `now`: monotonic seconds;
        `wall_s`: seconds since 1970.
        """
        return self.policy.sizes(reading, present, now, wall_s)

    def targets(
        self,
        wanted: PoolSizes,
        present: PoolSizes,
        victims: Mapping[Pool, Sequence[WorkerId]],
        reading: LoadReading,
        now: float,
    ) -> PoolSizes:
        """The sizes to ask for now. `victims`: the workers of each pool that shrinks, in the order in which they would
        be stopped.
        """
        num_open = reading.prefill.open_requests | reading.decode.open_requests
        return self._retirement.targets(wanted, present, victims, num_open, now)

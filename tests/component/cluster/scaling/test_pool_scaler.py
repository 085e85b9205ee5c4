"""The deployment PoolScaler, without Ray: what it begins with, and what it leaves for the next one."""

import time
from typing import Any

import pytest

from cluster.config.network import NetworkConfig
from cluster.config.scaling import PoolBounds, ScalingConfig
from cluster.messages.ids import Pool
from cluster.scaling import deployment
from cluster.scaling.autoscaler import Autoscaler
from cluster.scaling.deployment import PoolScaler
from cluster.scaling.pool_sizes import PoolSizes
from cluster.scaling.published_targets import Target, publish, published
from cluster.scaling.serve_view import ScaledPool
from tests.component.cluster.scaling.stores import store

__all__ = ["store"]

POOLS = {Pool.PREFILL: ScaledPool("PrefillWorker", {}), Pool.DECODE: ScaledPool("DecodeWorker", {})}


class Loop:
    """Publishes sizes once, as the loop that sizes the pools does after each look."""

    autoscaler: Autoscaler

    def __init__(self, autoscaler: Autoscaler, scheduler: object, view: object, publish_sizes: Any) -> None:
        Loop.autoscaler = autoscaler
        self._publish = publish_sizes

    async def run(self) -> None:
        await self._publish(PoolSizes(2, 3))


@pytest.mark.usefixtures("store")
async def test_pool_scaler_goes_on_with_the_correction_of_the_one_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stubs = {"application": lambda: "baton", "join_cluster": lambda tls: None, "set_up_logging": lambda: None}
    for name, stub in stubs.items():
        monkeypatch.setattr(deployment, name, stub)
    monkeypatch.setattr(deployment, "scheduler_finder", lambda cell: None)
    monkeypatch.setattr(deployment, "ScalingLoop", Loop)
    publish("baton", {pool.deployment: Target(1, time.time() - 60.0, 1.7) for pool in POOLS.values()})
    config = ScalingConfig(prefill=PoolBounds(max=4), decode=PoolBounds(max=4))
    scaler: Any = PoolScaler.__new__(PoolScaler)
    await scaler.__init__(config, POOLS, NetworkConfig())
    await scaler._task
    assert Loop.autoscaler.policy.correction == 1.7
    targets = published("baton", ["PrefillWorker", "DecodeWorker"])
    assert {name: (target.replicas, target.correction) for name, target in targets.items()} == {
        "PrefillWorker": (2, 1.7),
        "DecodeWorker": (3, 1.7),
    }

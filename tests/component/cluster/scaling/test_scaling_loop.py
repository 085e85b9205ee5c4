"""The loop that sizes the pools, between a Scheduler and a Serve that answer or do not."""

import asyncio

import msgspec
import pytest

from cluster.errors import WorkerUnreachable
from cluster.messages.ids import Pool, WorkerId
from cluster.messages.scaling import LoadReading, ScalingAsk
from cluster.scaling.autoscaler import Autoscaler
from cluster.scaling.pool_sizes import PoolSizes
from cluster.scaling.scaling_loop import ScalingLoop
from cluster.scaling.serve_view import ScaledPool, ServeAway, ServeState, ServeView
from tests.unit.cluster.scaling.readings import a_config, a_reading

D0, D1 = WorkerId("d0"), WorkerId("d1")


class Cluster:
    """A Scheduler, a Serve, and what was published."""

    def __init__(self, prefill: int = 1, decode: int = 1) -> None:
        self.sizes = PoolSizes(prefill, decode)
        self.reading = a_reading()
        self.asks: list[ScalingAsk] = []
        self.published: list[PoolSizes] = []
        self.is_scheduler_away = self.is_serve_away = False
        self.num_serve_asked = 0
        self.has_published = asyncio.Event()
        self.loop = ScalingLoop(Autoscaler(a_config()), self, self, self._publish)

    async def load(self, ask: ScalingAsk) -> LoadReading:
        if self.is_scheduler_away:
            raise WorkerUnreachable("away", "scheduler")
        self.asks.append(ask)
        reading, self.reading = self.reading, a_reading()
        return reading

    async def state(self) -> ServeState:
        if self.is_serve_away:
            raise ServeAway("away")
        self.num_serve_asked += 1
        return ServeState(
            is_settled=True, sizes=self.sizes, victims={Pool.PREFILL: [WorkerId("p0")], Pool.DECODE: [D0, D1]}
        )

    async def _publish(self, sizes: PoolSizes) -> None:
        self.published.append(sizes)
        self.has_published.set()


async def test_first_look_takes_the_sizes_that_serve_has() -> None:
    cluster = Cluster(prefill=2, decode=3)
    await cluster.loop.look()
    assert cluster.published == [PoolSizes(2, 3)]
    assert cluster.asks == [ScalingAsk([])]


async def test_serve_is_not_asked_each_time() -> None:
    cluster = Cluster()
    for _ in range(10):
        await cluster.loop.look()
    assert cluster.num_serve_asked == 1


@pytest.mark.parametrize("who", ["is_scheduler_away", "is_serve_away"])
async def test_nothing_is_published_while_somebody_is_away(who: str) -> None:
    cluster = Cluster()
    setattr(cluster, who, True)
    with pytest.raises((WorkerUnreachable, ServeAway)):
        await cluster.loop.look()
    assert cluster.published == []


async def test_loop_goes_on_after_any_error(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    cluster.reading = msgspec.structs.replace(cluster.reading, prefill=None)
    running = asyncio.create_task(cluster.loop.run())
    await cluster.has_published.wait()
    assert "a look at the load failed" in caplog.text
    running.cancel()


def test_state_of_serve_is_read_from_its_details() -> None:
    def replica(name: str, node: str | None, state: str = "RUNNING") -> dict[str, str]:
        return {"replica_id": name, "state": state} | ({"node_id": node} if node else {})

    deployments = {
        "PrefillWorker": {"target_num_replicas": 1, "replicas": [replica("p0", "head")]},
        "DecodeWorker": {
            "target_num_replicas": 3,
            "replicas": [replica("d0", "head"), replica("d1", "a"), replica("d2", None, "STARTING")],
        },
    }
    nodes = [
        {"NodeID": "head", "Alive": True, "Resources": {"node:__internal_head__": 1.0}, "Labels": {"pool": "decode"}},
        {"NodeID": "a", "Alive": True, "Resources": {}, "Labels": {"pool": "decode"}},
    ]
    view = ServeView(
        "baton", {Pool.PREFILL: ScaledPool("PrefillWorker", {}), Pool.DECODE: ScaledPool("DecodeWorker", {})}
    )
    other = {"deployments": {"DecodeWorker": {"replicas": [replica("x0", "b")]}}}
    state = view.read({"baton": {"deployments": deployments}, "other": other}, nodes)
    assert state.is_settled
    assert state.sizes == PoolSizes(1, 3)
    assert state.victims == {Pool.PREFILL: ["p0"], Pool.DECODE: ["d1", "d0"]}

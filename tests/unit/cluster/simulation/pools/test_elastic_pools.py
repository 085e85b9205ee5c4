"""ElasticPools: when simulated workers start and end, and what they cost, computed by hand."""

import asyncio
from collections.abc import Mapping, Sequence

from cluster.messages.ids import Pool, WorkerId
from cluster.messages.scaling import LoadReading
from cluster.messages.transport import LinkSpeed
from cluster.simulation.clock import VirtualLoop
from cluster.simulation.engine.engine_setting import EngineSetting
from cluster.simulation.pools.elastic_pools import ElasticPools, SizeChange, Sizes, Starting
from cluster.simulation.pools.pool_setting import ClusterSetting, PoolSetting
from cluster.simulation.pools.simulated_pools import SimulatedPools
from router.pending_placements import PendingPlacements
from router.state import RouterState
from tests.unit.cluster.simulation.linear_steps import LinearSteps

SPEED = LinkSpeed(latency_s=0.002, bytes_per_s=1e8)
D0, D1, D2 = (WorkerId(f"d{number}") for number in range(3))


def a_setting(num_decode: int) -> ClusterSetting:
    def pool(number: int) -> PoolSetting:
        return PoolSetting(number=number, engine=EngineSetting(kv_capacity_tokens=10_000), model=LinearSteps())

    return ClusterSetting(prefill=pool(1), decode=pool(num_decode), kv_bytes_per_token=1000, link=SPEED)


class Scripted:
    """An autoscaler that asks for sizes at times that a test says."""

    def __init__(self, sizes: Mapping[float, Sizes]) -> None:
        self._sizes = sizes
        self.retiring: Sequence[WorkerId] = ()
        self.seen: list[tuple[Sizes, list[WorkerId]]] = []
        """The sizes that were asked for last and the decode workers in the order of their end, at each look."""
        self.readings: list[LoadReading] = []

    def targets(
        self, reading: LoadReading, present: Sizes, victims: Mapping[Pool, Sequence[WorkerId]], now: float, /
    ) -> Sizes:
        self.readings.append(reading)
        self.seen.append((present, list(victims[Pool.DECODE])))
        return self._sizes.get(now, present)


class BusyPools(SimulatedPools):
    """Pools whose workers have requests until `busy_until`."""

    busy_until = 0.0

    def has_requests(self, worker: WorkerId) -> bool:
        return asyncio.get_running_loop().time() < self.busy_until


class Stage:
    def __init__(self, sizes: Mapping[float, Sizes], starting: Starting, num_decode: int, busy_until: float) -> None:
        scheduler = PendingPlacements(RouterState())
        self.pools = BusyPools(a_setting(num_decode), scheduler)
        self.pools.busy_until = busy_until
        self.autoscaler = Scripted(sizes)
        self.elastic = ElasticPools(self.pools, scheduler, self.autoscaler, starting)

    async def cost_at(self, at_s: float) -> float:
        """Worker seconds so far at a time."""
        await asyncio.sleep(at_s - asyncio.get_running_loop().time())
        return round(self.elastic.worker_s(), 6)

    def decode_workers(self) -> list[WorkerId]:
        return [worker.id for worker in self.pools.workers if worker.pool is Pool.DECODE]


def run(
    sizes: Mapping[float, Sizes], *until: float, num_decode: int = 1, busy_until: float = 0.0, drain_s: float = 60.0
) -> tuple[Stage, dict[float, tuple[float, list[WorkerId]]]]:
    """The worker seconds and the decode workers at the times of `until`. A start takes 10 s."""

    async def looked() -> tuple[Stage, dict[float, tuple[float, list[WorkerId]]]]:
        stage = Stage(sizes, Starting(start_s=10.0, drain_s=drain_s), num_decode, busy_until)
        return stage, {at_s: (await stage.cost_at(at_s), stage.decode_workers()) for at_s in until}

    return VirtualLoop().run(looked())


def test_worker_is_paid_for_from_its_order_and_serves_when_it_has_started() -> None:
    stage, at = run({5.0: (1, 2)}, 4.5, 12.5, 14.5, 15.5, 30.5)
    assert at[4.5] == (9.0, [D0])
    assert at[12.5] == (2 * 12.5 + 7.5, [D0])
    assert at[14.5] == (2 * 14.5 + 9.5, [D0])
    assert at[15.5] == (2 * 15.5 + 10.5, [D0, D1])
    assert at[30.5] == (2 * 30.5 + 25.5, [D0, D1])
    assert stage.elastic.changes == [SizeChange(0.0, 1, 1), SizeChange(5.0, 1, 2)]
    assert [len(reading.decode.open_requests) for reading in stage.autoscaler.readings[13:16:2]] == [1, 2]


def test_start_that_is_taken_back_costs_what_it_has_taken_and_the_newest_goes_first() -> None:
    stage, at = run({5.0: (1, 2), 7.0: (1, 3), 9.0: (1, 2)}, 8.5, 12.5, 15.5, 18.5)
    assert at[8.5] == (2 * 8.5 + 3.5 + 1.5, [D0])
    assert at[12.5] == (2 * 12.5 + 7.5 + 2.0, [D0])
    assert at[15.5] == (2 * 15.5 + 10.5 + 2.0, [D0, D1])  # that of 5 s, and not that of 7 s
    assert at[18.5] == (2 * 18.5 + 13.5 + 2.0, [D0, D1])
    assert [change.decode for change in stage.elastic.changes] == [1, 2, 3, 2]


def test_start_can_be_taken_back_after_an_older_one_has_come_to_its_end() -> None:
    _, at = run({5.0: (1, 2), 7.0: (1, 3), 16.0: (1, 2)}, 15.5, 18.5)
    assert at[15.5] == (2 * 15.5 + 10.5 + 8.5, [D0, D1])
    assert at[18.5] == (2 * 18.5 + 13.5 + 9.0, [D0, D1])


def test_idle_worker_ends_when_it_is_stopped_and_the_oldest_goes_first() -> None:
    stage, at = run({20.0: (1, 1)}, 19.5, 20.5, 30.5, num_decode=2)
    assert at[19.5] == (3 * 19.5, [D0, D1])
    assert at[20.5] == (2 * 20.5 + 20.0, [D1])
    assert at[30.5] == (2 * 30.5 + 20.0, [D1])
    assert stage.autoscaler.seen[20] == ((1, 1), [D1])


def test_worker_that_is_stopped_ends_when_its_requests_have_or_when_its_time_is_over() -> None:
    sizes = {20.0: (1, 1)}
    _, finished = run(sizes, 25.5, 26.5, num_decode=2, busy_until=25.7)
    assert finished[25.5] == (3 * 25.5, [D0, D1])
    assert finished[26.5] == (2 * 26.5 + 26.0, [D1])
    _, cut = run(sizes, 24.25, 24.75, num_decode=2, busy_until=1e9, drain_s=4.5)
    assert cut[24.25] == (3 * 24.25, [D0, D1])
    assert cut[24.75] == (2 * 24.75 + 24.5, [D1])


def test_worker_that_is_leaving_is_not_stopped_twice() -> None:
    stage, at = run({20.0: (1, 2), 22.0: (1, 1)}, 21.5, 23.5, 40.5, num_decode=3, busy_until=30.0)
    assert [worker for _, worker in stage.autoscaler.seen[20:23]] == [[D1, D2], [D1, D2], [D2]]
    assert at[23.5][1] == [D0, D1, D2]
    assert at[40.5] == (2 * 40.5 + 2 * 30.0, [D2])
    assert [len(reading.decode.open_requests) for reading in stage.autoscaler.readings[19:23]] == [3, 2, 2, 1]

import msgspec

from bench.scaling.autoscalers import QueueDepth
from cluster.config.scaling import PoolBounds, ScalingConfig
from cluster.messages.scaling import LoadReading
from tests.unit.cluster.scaling.readings import a_pool, a_reading

CONFIG = ScalingConfig(prefill=PoolBounds(max=9), decode=PoolBounds(max=9), down_after_s=100.0)


def reading(prefill: int, decode: int, waiting: int = 0) -> LoadReading:
    """Requests on one worker of each pool."""
    pools = {"prefill": a_pool("p", 1, num_open=prefill), "decode": a_pool("d", 1, num_open=decode)}
    return msgspec.structs.replace(a_reading(num_waiting=waiting), **pools)


def test_each_pool_has_as_many_workers_as_its_depth_asks_for() -> None:
    rule = QueueDepth(CONFIG, per_prefill=10, per_decode=20)
    assert rule.targets(reading(35, 10), (1, 1), {}, 0.0) == (4, 1)
    assert rule.targets(reading(35, 10, waiting=100), (4, 1), {}, 1.0) == (9, 3)


def test_pools_come_down_to_the_highest_wish_of_the_window() -> None:
    rule = QueueDepth(CONFIG, per_prefill=10, per_decode=10)
    assert rule.targets(reading(50, 50), (1, 1), {}, 0.0) == (5, 5)
    assert rule.targets(reading(20, 0), (5, 5), {}, 50.0) == (5, 5)
    assert rule.targets(reading(0, 0), (5, 5), {}, 101.0) == (2, 1)

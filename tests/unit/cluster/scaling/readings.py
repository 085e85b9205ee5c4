"""Readings of the load, as a Scheduler gives them."""

from dataclasses import asdict

import msgspec

from cluster.config.scaling import PoolBounds, ScalingConfig
from cluster.messages.ids import WorkerId
from cluster.messages.scaling import EngineReading, LoadReading, OfferedRequest, PoolReading
from router.prediction.hardware import H100, QWEN3_32B
from router.prediction.roofline import kv_capacity_tokens, step_model

ENGINE = EngineReading(
    step_coefficients=asdict(step_model(QWEN3_32B, H100, 2)),
    kv_capacity_tokens=kv_capacity_tokens(QWEN3_32B, H100, 2),
    max_step_tokens=2048,
    max_running=256,
)
SAMPLE = [OfferedRequest(1000 + 10 * number, 0, 200, 1.0, 3.0, 0.05) for number in range(100)]


def a_config(most: int = 20, least: int = 1, **fields: object) -> ScalingConfig:
    bounds = PoolBounds(max=most, min=least)
    return ScalingConfig(**({"prefill": bounds, "decode": bounds, "down_after_s": 100.0} | fields))  # type: ignore[arg-type]  # of `fields`


def a_pool(name: str, number: int, num_open: int = 0, kv_share: float = 0.0) -> PoolReading:
    open_requests = {WorkerId(f"{name}{index}"): num_open for index in range(number)}
    return PoolReading(open_requests=open_requests, kv_share=kv_share, engine=ENGINE)


def a_reading(
    num_arrived: int = 0, prefill: int | PoolReading = 1, decode: int | PoolReading = 1, **fields: object
) -> LoadReading:
    """`prefill`, `decode`: the workers of the pools, or their readings. `kv_share` among the fields: that of the decode
    pool.
    """
    kv_share = fields.pop("kv_share", 0.0)
    assert isinstance(kv_share, float)
    reading = LoadReading(
        scheduler="s",
        num_arrived=num_arrived,
        num_good=0,
        num_missed=0,
        num_waiting=0,
        sample=SAMPLE,
        prefill=prefill if isinstance(prefill, PoolReading) else a_pool("p", prefill),
        decode=decode if isinstance(decode, PoolReading) else a_pool("d", decode, kv_share=kv_share),
    )
    return msgspec.structs.replace(reading, **fields)

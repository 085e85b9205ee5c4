"""The simulated cluster and its faults. Pure."""

import msgspec

from cluster.messages.ids import Pool
from cluster.messages.transport import LinkSpeed
from cluster.simulation.engine.engine_setting import EngineSetting, StepTimes


class PoolSetting(msgspec.Struct, frozen=True, kw_only=True):
    """Workers of one kind."""

    number: int
    engine: EngineSetting
    model: StepTimes
    kind: str = "simulated"
    """`EngineShape.kind` of the workers: the Scheduler learns one latency model per kind."""
    max_requests: int = 512
    """Requests that a worker takes at a time."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """The death of a worker with all its requests. After `back_after_s`, another worker takes its place."""

    pool: Pool
    index: int
    """Index of the worker in its pool, from 0."""
    at_s: float
    back_after_s: float | None = None


class Reporting(msgspec.Struct, frozen=True, kw_only=True):
    """How reports of workers reach the Scheduler."""

    interval_s: float = 1.0
    delay_s: float = 0.0
    """Seconds from the sending of a report to its arrival."""
    kv_events_s: float | None = 0.05
    """Seconds from the first change of a cache to the message about it. None for no KV events."""
    load_scale: float = 1.0
    """Factor by which the load in reports is wrong."""
    seconds_scale: float = 1.0
    """Factor by which times in reports are wrong."""


class ClusterSetting(msgspec.Struct, frozen=True, kw_only=True):
    prefill: PoolSetting
    """With no prefill worker, all requests run whole on the decode workers."""
    decode: PoolSetting
    kv_bytes_per_token: int
    link: LinkSpeed
    """Speed of handoffs."""
    slow_links: dict[tuple[int, int], LinkSpeed] = {}
    """Speeds of links that differ, by the indices of their prefill and decode worker."""
    reporting: Reporting = Reporting()
    faults: tuple[Fault, ...] = ()
    first_token_timeout_s: float = 600.0
    max_tries: int = 1
    """Attempts of a client, which comes again after the Retry-After of a refusal."""


def worker_name(pool: Pool, index: int) -> str:
    """Name of a place for a worker. A number behind it distinguishes the workers that had the place before."""
    return f"{'p' if pool is Pool.PREFILL else 'd'}{index}"

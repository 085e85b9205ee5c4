"""The cluster that is simulated, and what goes wrong with it. Pure."""

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
    """As `EngineShape.kind`: the Scheduler learns one latency model per kind."""
    max_requests: int = 512
    """A worker refuses more at a time."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A worker dies with all that it runs; after a while it is back, as another one."""

    pool: Pool
    index: int
    """In its pool, from 0."""
    at_s: float
    back_after_s: float | None = None


class Reporting(msgspec.Struct, frozen=True, kw_only=True):
    """How the Scheduler hears of the workers."""

    interval_s: float = 1.0
    delay_s: float = 0.0
    """That a report is under way."""
    kv_events_s: float | None = 0.05
    """From the first change of a cache to the message that says it. None: no KV events."""
    load_scale: float = 1.0
    """What a report says of load is wrong by this factor."""
    seconds_scale: float = 1.0
    """And what it says of times by this one."""


class ClusterSetting(msgspec.Struct, frozen=True, kw_only=True):
    prefill: PoolSetting
    """None of them: all is done on the decode workers."""
    decode: PoolSetting
    kv_bytes_per_token: int
    link: LinkSpeed
    """Of handoffs."""
    slow_links: dict[tuple[int, int], LinkSpeed] = {}
    """Of pairs of a prefill and a decode worker, by their indices, that differ."""
    reporting: Reporting = Reporting()
    faults: tuple[Fault, ...] = ()
    first_token_timeout_s: float = 600.0
    max_tries: int = 1
    """Times that a client comes, after having been refused with a Retry-After."""


def worker_name(pool: Pool, index: int) -> str:
    """Of a place for a worker; the workers that have it one after the other are told apart by a number behind."""
    return f"{'p' if pool is Pool.PREFILL else 'd'}{index}"

"""The settings of a simulated cluster, and the faults that happen to it. Pure."""

import msgspec

from cluster.messages.ids import Pool
from cluster.messages.transport import LinkSpeed
from cluster.simulation.engine.engine_setting import EngineSetting, StepTimes
from cluster.simulation.engine.truth.uneven_steps import Chance, Noise, NoisySteps, SlowSteps


class PoolSetting(msgspec.Struct, frozen=True, kw_only=True):
    """The number and the settings of the workers of one pool."""

    number: int
    engine: EngineSetting
    model: StepTimes
    kind: str = "simulated"
    """The `EngineShape.kind` that the workers report. The Scheduler learns one latency model per kind."""
    max_requests: int = 512
    """Most requests that a worker runs at the same time. A worker answers WorkerBusy to a request beyond them."""
    noise: Noise = Noise()
    noise_seed: int = 0
    num_stragglers: int = 0
    """Workers that are slower than the others: the first ones of the pool."""
    straggler_factor: float = 1.0
    """Factor on the time of each step of these workers."""

    def step_times(self, index: int, chance: Chance) -> StepTimes:
        """The step times of the engine of a worker. `index`: the worker's index in its pool, from 0."""
        times = self.model
        if index < self.num_stragglers:
            times = SlowSteps(times, self.straggler_factor)
        return times if self.noise.is_none else NoisySteps(times, self.noise, chance)


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """The death of a worker with all its requests. A new worker may take the place of the dead one later."""

    pool: Pool
    index: int
    """Index of the worker in its pool, from 0."""
    at_s: float
    """Time of the death, in seconds since the start of the run."""
    back_after_s: float | None = None
    """Seconds from the death to the start of a new worker in the same place. None if no worker follows."""


class Reporting(msgspec.Struct, frozen=True, kw_only=True):
    """How late and how wrong the Scheduler's information about the workers is."""

    interval_s: float = 1.0
    """Seconds between two reports of a worker."""
    delay_s: float = 0.0
    """Seconds from the sending of a report to its arrival at the Scheduler."""
    kv_events_s: float | None = 0.05
    """Seconds from the first change of a cache to the KV events with that change. None if workers send no KV events."""
    load_scale: float = 1.0
    """Factor on the load in reports. 1 is the true load."""
    seconds_scale: float = 1.0
    """Factor on the durations of steps and transfers in reports. 1 is the true duration."""


class Linking(msgspec.Struct, frozen=True, kw_only=True):
    """How long decode workers take to prove and to measure links, where they have to."""

    proof_s: float | None = None
    """Seconds that the proof of a link takes. With None, all links are proved and measured from the start."""
    measure_s: float = 1.0
    """Seconds that the measurement of a link takes."""


class ClusterSetting(msgspec.Struct, frozen=True, kw_only=True):
    """Both pools, the links between them, the faults, and the patience of clients and sessions."""

    prefill: PoolSetting
    """The prefill pool. With 0 prefill workers, every request runs on path D."""
    decode: PoolSetting
    kv_bytes_per_token: int
    link: LinkSpeed
    """Speed of every link that is not in `slow_links`."""
    slow_links: dict[tuple[int, int], LinkSpeed] = {}
    """Speeds of links that differ from `link`, by the indices of the prefill and the decode worker."""
    linking: Linking = Linking()
    reporting: Reporting = Reporting()
    faults: tuple[Fault, ...] = ()
    first_token_timeout_s: float = 600.0
    """Most seconds that a session waits for its first token. Lower fails requests that would be served; higher keeps
    requests open that get no token.
    """
    is_resumable: bool = True
    """Requests can be resumed. Only then the first token of the prefill worker goes to the client."""
    max_tries: int = 1
    """Most times that a client sends one request: the first time, and again after each Retry-After."""
    cell: str = ""
    """Name of the cell of these workers, with which their ids begin. Empty if there is one cell."""


def worker_name(pool: Pool, index: int) -> str:
    """The name of a place in a pool. Workers that follow one another in a place add a number to this name."""
    return f"{'p' if pool is Pool.PREFILL else 'd'}{index}"

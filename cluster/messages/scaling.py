"""What the Scheduler tells of the load, for whoever sizes the pools (cluster/scaling/), and what it is told."""

import msgspec

from cluster.messages.ids import WorkerId


class ScalingAsk(msgspec.Struct, frozen=True, array_like=True):
    """Asks for a LoadReading."""

    retiring: list[WorkerId]
    """Workers that will be stopped soon. They are used last for RETIRING_S (router/load/live_workers.py), or until
    an ask that does not name them.
    """


class OfferedRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request of the sample, whatever became of it."""

    num_prompt: int
    num_cached: int
    """Prompt tokens that were expected in the caches of the worker that got the prompt. 0 for a refused request."""
    num_output: int
    """Output tokens of each sequence. The mean of the requests that have ended for one that has not."""
    ttft_s: float
    """TTFT objective of an empty prompt, in seconds."""
    ttft_per_prefill: float
    """Time that is added to the TTFT objective, as a multiple of the prompt's prefill time on an idle worker."""
    tpot_s: float
    """TPOT objective, in seconds."""


class EngineReading(msgspec.Struct, frozen=True, kw_only=True):
    """The engines of one pool, as the last of them reported."""

    step_coefficients: dict[str, float]
    """The fields of the StepModel (router/prediction/step_model.py) that was learned for them."""
    kv_capacity_tokens: int
    """KV tokens that fit into one engine's memory. 0 if it is not known."""
    max_step_tokens: int
    """Most tokens of a step."""
    max_running: int
    """Most requests that one worker takes, or that its engine runs in a step: the lesser of both."""


class PoolReading(msgspec.Struct, frozen=True, kw_only=True):
    """One pool at this moment."""

    open_requests: dict[WorkerId, int]
    """The requests that each live worker has, whoever has placed them."""
    kv_share: float
    """Share of the KV memory of all its workers that requests have reserved. 0 without workers."""
    engine: EngineReading | None
    """None if no worker of the pool has reported since the Scheduler started."""


class LoadReading(msgspec.Struct, frozen=True, kw_only=True):
    """The load at one moment. Counts grow from 0 with each Scheduler process, and never fall: a reading that is lost or
    read twice changes nothing.
    """

    scheduler: str
    """Names the Scheduler process. The counts of another process begin anew."""
    num_arrived: int
    """Requests that were asked for, refused ones included. Requests that are placed anew do not count again."""
    num_good: int
    """Requests that finished within both objectives."""
    num_missed: int
    """Requests that finished beyond an objective, or were refused for overload."""
    num_waiting: int
    """Requests that wait in the Scheduler now."""
    sample: list[OfferedRequest]
    """Recent requests, in order of arrival."""
    prefill: PoolReading
    decode: PoolReading

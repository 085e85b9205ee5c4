"""WorkerRate: the requests per second that one worker carries, and what keeps it from more. Pure."""

from collections.abc import Callable
from enum import StrEnum

import msgspec

LINK_SHARE = 0.7
"""Share of the bandwidth of a worker's link that handoffs may take on average. Higher lets handoffs wait for one
another; lower asks for more workers than the links need.
"""
HALVINGS = 40
"""Steps of a search for a rate, each of which halves the interval. Fewer give coarser rates; more change nothing
that is shown.
"""


class WorkerBound(StrEnum):
    """What a worker has too little of. The value says so, and ADVICE what to change."""

    COMPUTE = "compute"
    TTFT = "the TTFT objective"
    TPOT = "the TPOT objective"
    MEMORY = "KV memory"
    BATCH_LIMIT = "the engine's limit on requests"
    LINK = "the KV link"


ADVICE = {
    WorkerBound.COMPUTE: "A device with more operations per second, weights in fp8 or more prefix hits change it.",
    WorkerBound.TTFT: "Prompts wait for one another. A longer TTFT objective, a lower target or more prefix hits "
    "change it.",
    WorkerBound.TPOT: "Steps may hold few requests. A longer TPOT objective, more memory bandwidth, a larger tensor "
    "parallelism or weights in fp8 change it.",
    WorkerBound.MEMORY: "KV blocks fill the memory before steps become too long. A device with more memory, a larger "
    "tensor parallelism or shorter prompts change it.",
    WorkerBound.BATCH_LIMIT: "Engines run no more requests at a time. A higher `max_num_seqs` changes it.",
    WorkerBound.LINK: "Handoffs fill the links. Faster links (`--link`) change it, or fewer KV bytes per token.",
}


class Infeasible(ValueError):
    """No number of workers of this kind serves the demand within its objectives. The message says what is least."""


class WorkerRate(msgspec.Struct, frozen=True):
    rate_per_s: float
    """Requests per second that one worker carries."""
    bound: WorkerBound
    busy: float
    """Share of a prefill worker's time, or of a decode worker's places in its largest batch, that is taken."""


def boundary(holds: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Two numbers next to each other between which a condition stops to hold. It holds at `low`, and may at `high`."""
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high


def link_rate(bytes_per_s: float, kv_bytes: float) -> float:
    """Handoffs per second that one end of a link carries. `kv_bytes`: the bytes of one."""
    return LINK_SHARE * bytes_per_s / kv_bytes

"""A worker's reports to the Scheduler, and the replies to them."""

import msgspec

from cluster.messages.ids import Address, Pool, RequestId, WorkerId
from cluster.messages.transport import LinkSpeed, WorkerTransport


class WorkerLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's queue and memory after its last step."""

    num_running: int = 0
    num_waiting: int = 0
    kv_cache_usage: float = 0.0
    """Share of KV blocks in use, in [0, 1]."""
    num_open: int | None = None
    """Requests that the worker has taken and not ended, as of now. None: the worker does not count them."""


class EngineShape(msgspec.Struct, frozen=True, kw_only=True):
    """What does not change about an engine while it lives."""

    kind: str = ""
    """Engines of one kind take the same time for the same work: model, device, parallelism, engine version, pool."""
    kv_capacity_tokens: int = 0
    """Of its KV cache; 0: not known."""
    block_size: int = 16
    """Tokens per KV block."""
    max_step_tokens: int = 2048
    """vLLM's max_num_batched_tokens: longer prompts are computed in several steps, beside the decodes."""
    kv_bytes_per_token: int = 0
    leaves_tokens: bool = False
    """As a prefill engine it leaves the last prompt tokens to the decode engine: it gives no first token."""


class StepSample(msgspec.Struct, frozen=True, array_like=True):
    """One step of an engine, for the latency models."""

    num_prefill: int
    """Prompt tokens that it computed."""
    attended: int
    """Sum over its prompts of new * past + new * (new + 1) / 2 tokens: the work of their attention."""
    num_decoding: int
    """Requests that it gave a token to."""
    context_tokens: int
    """Of those requests, all together."""
    seconds: float


class TransferSample(msgspec.Struct, frozen=True, array_like=True):
    """One handoff as its decode worker saw it."""

    prefill: WorkerId
    num_tokens: int
    seconds: float


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's periodic word to the Scheduler: it exists, it is healthy, this is its load."""

    worker: WorkerId
    pool: Pool
    address: Address
    load: WorkerLoad
    max_requests: int
    """It takes no more than so many at a time."""
    shape: EngineShape = EngineShape()
    steps: list[StepSample] = []
    """Some of the steps since the last report."""
    transfers: list[TransferSample] = []
    """Decode workers only: handoffs since the last report."""
    kv_events_through: int | None = None
    """Sequence number of the last KV events that it has sent (cluster/engine/kv_event_feed.py). None: it sends none."""
    transport: WorkerTransport = WorkerTransport()
    links: dict[WorkerId, LinkSpeed | None] = {}
    """Decode workers only: the prefill workers that a real handoff has worked from. None: not measured yet."""
    requests: list[RequestId] | None = None
    """The ids of what it has taken and not ended, where the reply to an earlier report asked for them."""


class ReportReply(msgspec.Struct, frozen=True, kw_only=True):
    """What the Scheduler wants a worker to know."""

    prefill_workers: frozenset[WorkerId]
    """Live prefill workers, so that a decode worker can connect to those that it does not know."""
    wants_kv_snapshot: bool = False
    """The Scheduler does not know what this worker caches: it is to send all of it."""
    wants_requests: bool = False
    """More is charged to this worker than it counts: its next report is to name the requests that it has."""

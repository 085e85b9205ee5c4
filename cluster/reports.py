"""What workers say of themselves: their reports, their KV events, and what the Scheduler makes of them.

Messages that cross a process, as in cluster/types.py.
"""

from enum import StrEnum

import msgspec

from cluster.types import (
    Address,
    Pool,
    RequestId,
    SloClass,
    WorkerId,
)


class WorkerLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's queue and memory after its last step."""

    num_running: int = 0
    num_waiting: int = 0
    kv_cache_usage: float = 0.0
    """Share of KV blocks in use, in [0, 1]."""
    num_steps: int = 0
    """That the engine has run since it started: each gives every request that decodes one token."""
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
    max_decoding: int = 256
    """vLLM's max_num_seqs."""
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
    """One hand-over as its decode worker saw it."""

    prefill: WorkerId
    num_tokens: int
    seconds: float


class Transport(StrEnum):
    """What can carry KV blocks from one engine to another, fastest first."""

    NVLINK = "nvlink"
    SHARED_MEMORY = "shared_memory"
    RDMA = "rdma"
    TCP = "tcp"


class Setting(msgspec.Struct, frozen=True, array_like=True):
    """An environment variable of an engine's processes."""

    name: str
    value: str | None
    """None: left to its default."""
    why: str


class WorkerTransport(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker's engine may move KV blocks, chosen when it starts (kvtransfer/topology.py)."""

    transports: tuple[Transport, ...] = ()
    """What its settings allow, fastest first. Empty: the operator has set UCX_TLS."""
    settings: tuple[Setting, ...] = ()


class LinkSpeed(msgspec.Struct, frozen=True, array_like=True):
    """What a link takes to carry KV blocks: `latency_s + num_bytes / bytes_per_s`, measured when it was proved."""

    latency_s: float
    bytes_per_s: float


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
    """Decode workers only: hand-overs since the last report."""
    kv_events_through: int | None = None
    """Sequence number of the last KV events that it has sent (cluster/kv_events.py). None: it sends none."""
    transport: WorkerTransport = WorkerTransport()
    links: dict[WorkerId, LinkSpeed | None] = {}
    """Decode workers only: the prefill workers that a real hand-over has worked from. None: not measured yet."""
    requests: list[RequestId] | None = None
    """The ids of what it has taken and not ended, where the reply to an earlier report asked for them."""


class KvTier(StrEnum):
    """Where a worker keeps KV blocks, fastest first."""

    GPU = "gpu"
    """The engine's own memory, whatever its device is."""
    HOST = "host"
    DISK = "disk"


class KvChange(msgspec.Struct, frozen=True, array_like=True):
    """KV blocks that have come to a tier of a worker (`is_stored`) or have left it. None: all have left all tiers."""

    tier: KvTier
    is_stored: bool
    block_hashes: list[bytes] | None


class KvEvents(msgspec.Struct, frozen=True, array_like=True):
    """What a worker's caches have gained and lost, in order."""

    worker: WorkerId
    number: int
    """One more than that of the worker's message before."""
    is_snapshot: bool
    """The changes are all that the worker caches: what came before does not count."""
    is_exact: bool
    """False: the worker itself has missed changes of its engine and cannot know them."""
    changes: list[KvChange]


class ReportReply(msgspec.Struct, frozen=True, kw_only=True):
    """What the Scheduler wants a worker to know."""

    prefill_workers: frozenset[WorkerId]
    """Live prefill workers, so that a decode worker can connect to those that it does not know."""
    wants_kv_snapshot: bool = False
    """The Scheduler does not know what this worker caches: it is to send all of it."""
    wants_requests: bool = False
    """More is charged to this worker than it counts: its next report is to name the requests that it has."""


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    worker: WorkerId
    pool: Pool
    load: WorkerLoad
    num_placed: int
    """Open requests that placement has charged to it."""
    max_requests: int
    host: str
    """Address of its node."""
    transport: WorkerTransport
    links: dict[WorkerId, LinkSpeed | None]
    """Decode workers only: live prefill workers that it can pull from. None: not measured yet."""
    report_age_s: float


class QueuedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One that waits in the Scheduler for a placement."""

    request_id: RequestId
    slo_class: SloClass
    num_before: int
    """Requests that are served before it."""
    waited_s: float
    wait_s: float
    """That it is expected to wait yet."""
    gives_up_s: float
    """Until it is refused, if it still waits then."""


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of the Scheduler's state, for readiness, metrics and debugging."""

    workers: list[WorkerView]

    @property
    def num_prefill(self) -> int:
        return sum(w.pool is Pool.PREFILL for w in self.workers)

    @property
    def num_decode(self) -> int:
        return sum(w.pool is Pool.DECODE for w in self.workers)

    @property
    def num_links(self) -> int:
        """Proved prefill-decode pairs."""
        return sum(len(w.links) for w in self.workers)

    @property
    def is_ready(self) -> bool:
        """Both pools can serve: some prefill worker can hand over to some decode worker."""
        return self.num_links > 0

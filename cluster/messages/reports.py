"""A worker's reports to the Scheduler, and the replies: as both sides use them, and as they are sent (the deltas)."""

import msgspec

from cluster.messages.ids import Address, Pool, RequestId, WorkerId
from cluster.messages.kv_format import KvFormat
from cluster.messages.transport import LinkSpeed, WorkerTransport

REPORT_INTERVAL_S = 0.25
"""Seconds between two reports of a worker. Longer makes the Scheduler's picture of queues, memory and progress older;
shorter costs workers and the Scheduler CPU.
"""


class WorkerLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's queue and memory after its last step."""

    num_running: int = 0
    """Requests in the engine's batch."""
    num_waiting: int = 0
    """Requests that wait for a place in the engine's batch."""
    kv_cache_usage: float = 0.0
    """Share of KV blocks in use, in [0, 1]."""
    num_open: int | None = None
    """Requests that the worker has now. None if the worker does not count them."""
    num_leases: int = 0
    """Leases whose KV blocks the worker keeps. Prefill workers only."""


class EngineShape(msgspec.Struct, frozen=True, kw_only=True):
    """What does not change about an engine while it lives."""

    kind: str = ""
    """Engines of one kind take the same time for the same work: same model, device, parallelism, engine version and
    pool.
    """
    kv_capacity_tokens: int = 0
    """Size of the engine's KV cache in tokens. 0 if unknown."""
    block_size: int = 16
    """Tokens per KV block."""
    max_step_tokens: int = 2048
    """Most tokens of one step: vLLM's max_num_batched_tokens. A longer prompt is computed in several steps, together
    with decodes.
    """
    max_running: int = 0
    """Most requests in a step: vLLM's max_num_seqs. Further ones wait in the engine. 0 if unknown."""
    has_short_steps: bool = False
    """Whether the engine keeps steps in which requests decode short enough for their TPOT objectives
    (router/prediction/step_chunk.py). Otherwise only `max_step_tokens` bounds a step.
    """
    by_deadline: bool = False
    """Whether the engine computes prompts in the order in which their first tokens are due, and not in the order of
    arrival.
    """
    overtakes: bool = False
    """Whether a prompt that is due earlier is computed before one that has begun."""
    kv_bytes_per_token: int = 0
    leaves_tokens: bool = False
    """Whether the engine, as a prefill engine, leaves the last prompt tokens to the decode engine. Then it gives no
    first token.
    """
    kv_format: KvFormat | None = None
    """What the engine's KV blocks look like. None if unknown."""
    rounds_coarsely: bool = False
    """Whether equal engines differ by more than the rounding of 16 bits: the KV has fewer bits, or a router of experts
    chooses other experts when its input is rounded differently.
    """


class StepSample(msgspec.Struct, frozen=True, array_like=True):
    """One step of an engine, for the latency models."""

    num_prefill: int
    """Prompt tokens that the step computed."""
    attended: int
    """Work of the prompts' attention, in pairs of tokens: the sum of `prompt_attention`
    (router/prediction/step_model.py) over the step's prompts.
    """
    num_decoding: int
    """Requests that the step gave a token to."""
    context_tokens: int
    """Context tokens of the requests that decode, all together."""
    seconds: float


class TransferSample(msgspec.Struct, frozen=True, array_like=True):
    """One handoff, as its decode worker measured it."""

    prefill: WorkerId
    num_tokens: int
    seconds: float


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's periodic report to the Scheduler: the worker lives, and this is its load."""

    worker: WorkerId
    pool: Pool
    address: Address
    load: WorkerLoad
    max_requests: int
    """Most requests that the worker takes at a time."""
    shape: EngineShape = EngineShape()
    steps: list[StepSample] = []
    """Samples of the steps since the last report."""
    transfers: list[TransferSample] = []
    """Handoffs since the last report. Decode workers only."""
    kv_events_through: int | None = None
    """Number of the last KV events that the worker has sent (cluster/engine/kv_event_feed.py). None if it
    sends none.
    """
    transport: WorkerTransport = WorkerTransport()
    links: dict[WorkerId, LinkSpeed | None] = {}
    """Prefill workers from which a real handoff has worked, with the speed of each link that this worker has measured.
    None stands for a link that it has not measured. Decode workers only.
    """
    requests: list[RequestId] | None = None
    """Ids of the requests that the worker has, if the reply to an earlier report asked for them."""
    version: int = 0
    """Number of the standing part, counted by the worker. 0 for a report that was never sent as a delta."""
    probing: WorkerId | None = None
    """The prefill worker to which this decode worker proves or measures a link now. None if it does neither."""
    link_failures: dict[WorkerId, str] = {}
    """Why the last attempts to prove a link have failed, by prefill worker. Decode workers only."""


class LinkOrder(msgspec.Struct, frozen=True, array_like=True):
    """What a decode worker is to find out about one link next."""

    prefill: WorkerId
    measures: bool = False
    """Whether the speed of the link is to be measured, after the proof if the link is not proved."""


class ReportReply(msgspec.Struct, frozen=True, kw_only=True):
    """The Scheduler's reply to a report."""

    link: LinkOrder | None = None
    """The link that the decode worker is to prove or to measure next. None if there is nothing to do."""
    gone: tuple[WorkerId, ...] = ()
    """Prefill workers whose links the decode worker is to forget, because they are gone."""
    wants_kv_snapshot: bool = False
    """Whether the worker must send all that it caches, because the Scheduler does not know it."""
    wants_requests: bool = False
    """Whether the next report must name the worker's requests, because more requests are charged to the worker than it
    counts.
    """
    kv_events_every_s: float = 0.0
    """Least time between two messages of KV events, in seconds."""


class StandingReport(msgspec.Struct, frozen=True, array_like=True):
    """The part of a worker's reports that mostly stays the same."""

    pool: Pool
    address: Address
    max_requests: int
    shape: EngineShape
    transport: WorkerTransport
    links: dict[WorkerId, LinkSpeed | None]
    link_failures: dict[WorkerId, str] = {}


class ReportDelta(msgspec.Struct, frozen=True, array_like=True):
    """A report as it is sent: the standing part only if the Scheduler may not have it."""

    worker: WorkerId
    version: int
    """Number of the standing part. It grows with each change of that."""
    standing: StandingReport | None
    load: WorkerLoad
    steps: list[StepSample]
    transfers: list[TransferSample]
    kv_events_through: int | None
    requests: list[RequestId] | None
    probing: WorkerId | None = None


class DeltaReply(msgspec.Struct, frozen=True, array_like=True):
    """The reply to a ReportDelta."""

    wants_standing: bool
    """Whether the Scheduler has not taken the report, because it does not have the standing part."""
    wants_kv_snapshot: bool = False
    wants_requests: bool = False
    steps_per_report: float = 0.0
    """Samples of steps that a report may have, in the mean: all workers of a kind teach one model."""
    link: LinkOrder | None = None
    gone: tuple[WorkerId, ...] = ()
    kv_events_every_s: float = 0.0

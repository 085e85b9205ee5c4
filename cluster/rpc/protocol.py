"""The messages between Baton's processes, for cluster/rpc/connection.py: first those of the Scheduler, then those of
workers.
"""

import msgspec

from cluster.errors import ErrorMessage
from cluster.messages.generation import GenerateRequest, TokenDelta
from cluster.messages.ids import Address, RequestId, WorkerId
from cluster.messages.kv_events import KvEvents
from cluster.messages.operations import DrainAnswer, DrainAsk, SchedulerStatus
from cluster.messages.placement import Placement, PlacementRequest, Rejection
from cluster.messages.quality import WorkerQuarantine
from cluster.messages.reports import DeltaReply, ReportDelta
from cluster.messages.retention import ToolWait
from cluster.messages.scaling import LoadReading, ScalingAsk
from cluster.messages.scheduler_events import Events, OpenRequests, Pause, WorkerLeft
from cluster.messages.views import ClusterView, QueuedRequest, RosterChange
from cluster.rpc.frames import Method
from kvtransfer.handoff import KVHandoff, PrefillResult, PulledBlocks
from kvtransfer.lease_terms import LeaseId, Promise, Refusal

PLACE = Method[PlacementRequest, Placement | Rejection]("place", PlacementRequest, Placement | Rejection)
"""An ingress asks for a placement."""
OPEN_REQUESTS = Method[OpenRequests, None]("open_requests", OpenRequests)
"""The id and the open requests of an ingress. The first message of an ingress on a connection, sent again at
intervals.
"""
EVENTS = Method[Events, None]("events", Events)
"""Events of sessions. The ingress keeps the events until the Scheduler has posted HEARD."""
HEARD = Method[int, None]("heard", int)
"""From the Scheduler: it has all events up to this number."""
PAUSE = Method[Pause, None]("pause", Pause)
"""From the Scheduler: a request is to give its room to a request of a higher class. No answer is expected. The ingress
ignores it for a request that has ended, or has another placement by now.
"""
LEAVING = Method[WorkerLeft, None]("leaving", WorkerLeft)
"""A worker takes no more requests."""
REPORT = Method[ReportDelta, DeltaReply]("report", ReportDelta, DeltaReply)
"""A worker's periodic report."""
KV_EVENTS = Method[KvEvents, None]("kv_events", KvEvents)
"""KV blocks that a worker's caches have gained and lost. A lost message is noticed by the gap in the numbers."""
ROSTER = Method[int, RosterChange]("roster", int, RosterChange)
"""Asks for what has changed in the roster of live workers since a version. 0 asks for all of it."""
VIEW = Method[None, ClusterView]("view", None, ClusterView)
"""Asks for a snapshot of the Scheduler's state."""
QUEUE = Method[None, list[QueuedRequest]]("queue", None, list[QueuedRequest])
"""Asks for the requests that wait for a placement, and how long they are expected to wait."""
STATUS = Method[None, SchedulerStatus]("status", None, SchedulerStatus)
"""Asks for all that the Scheduler knows, for an operator."""
DRAIN = Method[DrainAsk, DrainAnswer]("drain", DrainAsk, DrainAnswer)
"""An operator drains a worker, or undoes that. It may be sent twice."""
LOCATE = Method[WorkerId, Address | None]("locate", WorkerId, Address | None)
"""Asks where a worker listens. The answer is None if the Scheduler does not know the worker."""
LOAD = Method[ScalingAsk, LoadReading]("load", ScalingAsk, LoadReading)
"""Asks for the load, for whoever sizes the pools, and names the workers that will be stopped."""
QUARANTINE = Method[WorkerQuarantine, None]("quarantine", WorkerQuarantine, None)
"""The workers that answer wrongly, all of them. An ingress tells it again at intervals."""
REPLACED = Method[int, None]("replaced", int)
"""To a Scheduler: a Scheduler of this epoch exists. One of a lower epoch serves no more."""

PREFILL = Method[GenerateRequest, PrefillResult | None]("prefill", GenerateRequest, PrefillResult | None)
"""Asks a prefill worker to prefill. Cancellation of the call aborts the prefill."""
WITHDRAW = Method[RequestId, None]("withdraw", RequestId)
"""The ingress that asked for a prefill does not want its handoff any more."""


class Redeem(msgspec.Struct, frozen=True, array_like=True):
    """Redeems a lease."""

    lease: LeaseId
    decode: WorkerId
    """The decode worker that will pull."""
    digest: bytes
    """Digest of the prompt that is to be decoded (kvtransfer/handoff.py)."""


class LeaseClaim(msgspec.Struct, frozen=True, array_like=True):
    """A redeemed lease and its holder."""

    lease: LeaseId
    decode: WorkerId
    """The decode worker that has redeemed the lease."""


REDEEM = Method[Redeem, Promise | Refusal]("redeem", Redeem, Promise | Refusal)
"""A decode worker is about to pull."""
EXTEND = Method[LeaseClaim, Promise | Refusal]("extend", LeaseClaim, Promise | Refusal)
"""A decode worker still waits for its pull."""
GIVE_BACK = Method[LeaseClaim, None]("give_back", LeaseClaim)
"""A decode worker will not pull."""


class Start(msgspec.Struct, frozen=True, array_like=True):
    """Generate, and send the deltas under the number `stream` on the step stream of this connection."""

    stream: int
    """Number of the stream, unique on the connection."""
    request: GenerateRequest
    handoff: KVHandoff | None


class StreamFailed(msgspec.Struct, frozen=True, array_like=True):
    """A stream has ended without its finish reasons."""

    stream: int
    error: ErrorMessage


ANSWER = Method[None, None]("answer", None)
"""Asks whether a worker's engine lives. The engine answers after its current step."""
START = Method[Start, None]("start", Start)
"""Starts a stream."""
STOP = Method[int, None]("stop", int)
"""A stream has no reader any more."""
FORGET = Method[PulledBlocks | None, None]("forget", PulledBlocks | None)
"""Cached KV blocks of the worker cannot be trusted: those that it has pulled, or all if none are named."""
AWAIT_TOOLS = Method[ToolWait, None]("await_tools", ToolWait)
"""An answer of the worker has called tools. The worker ignores it for a prompt that it does not know."""
STEP = Method[list[tuple[int, TokenDelta]], None]("step", list[tuple[int, TokenDelta]])
"""Everything that one engine step produced for the streams of this connection."""
STREAM_FAILED = Method[StreamFailed, None]("stream_failed", StreamFailed)
"""Ends a stream with an error."""

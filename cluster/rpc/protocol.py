"""What Baton's processes say to each other: the messages of cluster/rpc/connection.py, by who answers them."""

import msgspec

from cluster.errors import ErrorMessage
from cluster.messages.generation import GenerateRequest, TokenDelta
from cluster.messages.ids import Address, RequestId, WorkerId
from cluster.messages.kv_events import KvEvents
from cluster.messages.placement import Placement, PlacementRequest, Rejection
from cluster.messages.reports import ReportReply, WorkerReport
from cluster.messages.scheduler_events import Events, OpenRequests, WorkerLeft
from cluster.messages.views import ClusterView, QueuedRequest
from cluster.rpc.connection import Method
from kvtransfer.handoff import KVHandoff, PrefillResult
from kvtransfer.lease import LeaseId, Promise, Refusal

PLACE = Method[PlacementRequest, Placement | Rejection]("place", PlacementRequest, Placement | Rejection)
OPEN_REQUESTS = Method[OpenRequests, None]("open_requests", OpenRequests)
"""Says which ingress process speaks on the connection from now on, and what of it is open."""
EVENTS = Method[Events, None]("events", Events)
"""What sessions tell. The ingress keeps the events until the Scheduler has posted HEARD."""
HEARD = Method[int, None]("heard", int)
"""From the Scheduler: it has all events up to this number."""
LEAVING = Method[WorkerLeft, None]("leaving", WorkerLeft)
REPORT = Method[WorkerReport, ReportReply]("report", WorkerReport, ReportReply)
KV_EVENTS = Method[KvEvents, None]("kv_events", KvEvents)
"""What a worker's caches have gained and lost. One that is lost is missed by its number."""
VIEW = Method[None, ClusterView]("view", None, ClusterView)
QUEUE = Method[None, list[QueuedRequest]]("queue", None, list[QueuedRequest])
"""Who waits for a placement, and for how long yet."""
LOCATE = Method[WorkerId, Address | None]("locate", WorkerId, Address | None)
"""Where a worker listens; None when the Scheduler does not know it."""

PREFILL = Method[GenerateRequest, PrefillResult | None]("prefill", GenerateRequest, PrefillResult | None)
"""Cancelling it aborts the prefill."""
WITHDRAW = Method[RequestId, None]("withdraw", RequestId)
"""Whoever asked for a prefill does not want its handoff any more."""


class Redeem(msgspec.Struct, frozen=True, array_like=True):
    lease: LeaseId
    decode: WorkerId
    """Who will pull."""
    digest: bytes
    """Of the prompt that is to be decoded (kvtransfer/handoff.py)."""


class LeaseClaim(msgspec.Struct, frozen=True, array_like=True):
    lease: LeaseId
    decode: WorkerId
    """Who has redeemed it."""


REDEEM = Method[Redeem, Promise | Refusal]("redeem", Redeem, Promise | Refusal)
"""A decode worker is about to pull."""
EXTEND = Method[LeaseClaim, Promise | Refusal]("extend", LeaseClaim, Promise | Refusal)
"""It still waits for its pull."""
GIVE_BACK = Method[LeaseClaim, None]("give_back", LeaseClaim)
"""It will not pull."""


class Start(msgspec.Struct, frozen=True, array_like=True):
    """Generate, and send the deltas on the step stream of this connection under this number."""

    stream: int
    """Unique among the streams of the connection."""
    request: GenerateRequest
    handoff: KVHandoff | None


class StreamFailed(msgspec.Struct, frozen=True, array_like=True):
    """A stream has ended without its finish reasons."""

    stream: int
    error: ErrorMessage


ANSWER = Method[None, None]("answer", None)
"""Whether the engine of a worker lives: it answers after the step that it is in."""
START = Method[Start, None]("start", Start)
STOP = Method[int, None]("stop", int)
"""Nobody reads this stream any more."""
FORGET = Method[None, None]("forget", None)
"""The worker's cached prefixes cannot be trusted."""
STEP = Method[list[tuple[int, TokenDelta]], None]("step", list[tuple[int, TokenDelta]])
"""Everything that one engine step produced for the streams of this connection."""
STREAM_FAILED = Method[StreamFailed, None]("stream_failed", StreamFailed)

"""What Baton's processes say to each other: the messages of cluster/channel.py, by who answers them."""

import msgspec

from cluster.channel import Method
from cluster.errors import ErrorMessage
from cluster.types import (
    Address,
    ClusterView,
    GenerateRequest,
    Placement,
    PlacementRequest,
    Rejection,
    ReportReply,
    RequestClosed,
    RequestId,
    TokenDelta,
    WorkerId,
    WorkerLost,
    WorkerReport,
)
from kvtransfer.handoff import KVHandoff, PrefillResult

PLACE = Method[PlacementRequest, Placement | Rejection]("place", PlacementRequest, Placement | Rejection)
TELL = Method[RequestClosed | WorkerLost, None]("tell", RequestClosed | WorkerLost)
REPORT = Method[WorkerReport, ReportReply]("report", WorkerReport, ReportReply)
VIEW = Method[None, ClusterView]("view", None, ClusterView)
LOCATE = Method[WorkerId, Address | None]("locate", WorkerId, Address | None)
"""Where a worker listens; None when the Scheduler does not know it."""

PREFILL = Method[GenerateRequest, PrefillResult | None]("prefill", GenerateRequest, PrefillResult | None)
ABORT_PREFILL = Method[RequestId, None]("abort_prefill", RequestId)


class Start(msgspec.Struct, frozen=True, array_like=True):
    """Generate, and send the deltas on the step stream of this connection under this number."""

    stream: int
    """Unique among the streams of the connection."""
    request: GenerateRequest
    handoff: KVHandoff | None


class Release(msgspec.Struct, frozen=True, array_like=True):
    request_id: RequestId
    handoff: KVHandoff


class StreamFailed(msgspec.Struct, frozen=True, array_like=True):
    """A stream has ended without its finish reasons."""

    stream: int
    error: ErrorMessage


START = Method[Start, None]("start", Start)
STOP = Method[int, None]("stop", int)
"""Nobody reads this stream any more."""
RELEASE = Method[Release, None]("release", Release)
STEP = Method[list[tuple[int, TokenDelta]], None]("step", list[tuple[int, TokenDelta]])
"""Everything that one engine step produced for the streams of this connection."""
STREAM_FAILED = Method[StreamFailed, None]("stream_failed", StreamFailed)

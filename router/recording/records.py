"""The records of the stimulus log: one for each call of RouterState that may change it, with the clock and the answer.
Pure.

A file of the log begins with a `LogHeader`, and perhaps with parts of a snapshot. `now` is the `now` of the call:
seconds of the Scheduler's monotonic clock. Strings of tenants are ids; no record has the text of a prompt or of an
answer.
"""

from typing import Final

import msgspec

from cluster.messages.ids import IngressId, RequestId, SloClass, WorkerId
from cluster.messages.kv_events import KvEvents
from cluster.messages.placement import Placement, PlacementRequest, Rejection
from cluster.messages.reports import LinkOrder, ReportDelta, ReportReply, WorkerReport
from cluster.messages.scheduler_events import Pause, SchedulerEvent, WorkerLeft
from cluster.slo import SloConfig
from router.recording.snapshot import SnapshotPart

FORMAT: Final = 1
"""Version of the records. A reader refuses files of another one."""

Answer = Placement | Rejection | str
"""What RouterState answered. A string stands for an exception, a defect of the Scheduler."""


class LogHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The first record of each file: what a replay must know before it can begin."""

    format: int
    protocol: int
    """Version of Baton's protocol between processes (cluster/network/handshake.py)."""
    code: str
    """Digest of the policy's sources (cluster/compiled.py). Other code may decide otherwise."""
    is_compiled: bool
    run: str
    """The Scheduler process, at random. A Scheduler that is restarted is another one."""
    number: int
    """Number of the file among those of the process, counted from 1."""
    epoch: int
    """Epoch of the Scheduler (cluster/scheduler_registry.py). 0 if it has none."""
    wall_s: float
    """Unix time when the file began."""
    loop_s: float
    """The Scheduler's monotonic clock at the same moment, in seconds."""
    slo: SloConfig
    max_indexed_blocks: int
    admits_all: bool = False
    preempts: bool = True
    has_snapshot: bool
    """Whether the file begins with a snapshot of the state. File 1 needs none: a Scheduler starts with nothing."""
    is_exact: bool
    """Whether a replay may go on from the end of the file before, without the snapshot: nothing was lost since then."""

    def wall_time(self, loop_s: float) -> float:
        """The Unix time of a moment of the monotonic clock."""
        return self.wall_s + loop_s - self.loop_s


class PlacementAsked(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="a"):
    """`place`."""

    now: float
    ingress: IngressId | None
    request: PlacementRequest
    turns_away: bool
    answer: Answer | None
    """None if the request waits."""


class Decided(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="d"):
    """`decide`."""

    now: float
    most: int
    decisions: list[tuple[RequestId, Answer]]


class PausesTaken(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="p"):
    """`take_pauses`, where it gave some."""

    pauses: list[tuple[IngressId | None, Pause, SloClass]]


class Told(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="e"):
    """`handle` of an event of a session."""

    now: float
    ingress: IngressId | None
    event: SchedulerEvent


class Left(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="l"):
    """`handle` of a worker's leave."""

    now: float
    event: WorkerLeft


class Replied(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a reply to a report decides."""

    link: LinkOrder | None
    gone: tuple[WorkerId, ...]
    wants_kv_snapshot: bool
    wants_requests: bool


class Reported(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="r"):
    """`handle` and `reply_to` of a report that came as a delta. `reply` is None where it decides nothing."""

    now: float
    delta: ReportDelta
    reply: Replied | None = None


class ReportedWhole(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="w"):
    """The same of a report that came as a whole, as in the simulator."""

    now: float
    report: WorkerReport
    reply: Replied | None = None


class Disconnected(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="x"):
    """`disconnected`."""

    worker: WorkerId


class Indexed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="k"):
    """`handle_kv_events`."""

    now: float
    events: KvEvents


class IndexMissed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="m"):
    """`index.miss`."""

    worker: WorkerId


class IndexSwept(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="s"):
    """`index.sweep`."""


class KeptOpen(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="o"):
    """`keep_open`."""

    now: float
    ingress: IngressId
    requests: frozenset[RequestId]


class IngressWithdrawn(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="i"):
    """`withdraw_of`: an ingress has lost its connection."""

    ingress: IngressId


class Looked(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="v"):
    """`roster` or `queued`: looks that leave traces in the state."""

    now: float
    at_queue: bool


class Retired(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="t"):
    """`load.read`, which retires workers."""

    now: float
    workers: list[WorkerId]


class Quarantined(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="q"):
    """`quarantined.told`."""

    now: float
    workers: dict[WorkerId, str]
    """Why, for each worker in quarantine."""
    lease: int = 0
    """Number of the lease of the replica that has told."""


class Drained(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="n"):
    """`workers.drain`: an operator drains these workers, and no others."""

    workers: list[WorkerId]


class LogGap(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="g"):
    """Records are missing here. A replay is not exact from here to the next snapshot."""

    num_lost: int


Stimulus = (
    PlacementAsked
    | Decided
    | PausesTaken
    | Told
    | Left
    | Reported
    | ReportedWhole
    | Disconnected
    | Indexed
    | IndexMissed
    | IndexSwept
    | KeptOpen
    | IngressWithdrawn
    | Looked
    | Retired
    | Quarantined
    | Drained
    | LogGap
)
Record = Stimulus | SnapshotPart


def replied(reply: ReportReply) -> Replied | None:
    """What a reply decides. None if it decides nothing."""
    if reply.link is None and not (reply.gone or reply.wants_kv_snapshot or reply.wants_requests):
        return None
    return Replied(reply.link, reply.gone, reply.wants_kv_snapshot, reply.wants_requests)

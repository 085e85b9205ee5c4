"""Snapshots of the Scheduler's state, for readiness, metrics and debugging."""

from enum import StrEnum

import msgspec
from msgspec import UNSET, UnsetType

from cluster.messages.ids import Address, CellName, Pool, RequestId, SloClass, WorkerId
from cluster.messages.transport import LinkSpeed, WorkerTransport


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker as the Scheduler sees it."""

    worker: WorkerId
    pool: Pool
    num_placed: int
    """Open requests that placement has charged to the worker."""
    max_requests: int
    """Most requests that the worker takes at a time."""
    host: str
    """Address of the worker's node."""
    transport: WorkerTransport
    links: dict[WorkerId, LinkSpeed | None]
    """Live prefill workers that a decode worker can pull from, with the speed of each link: its own, or that of a link
    of its class (router/links/link_classes.py). None stands for a speed that is not measured yet.
    """
    cell: CellName | UnsetType = UNSET
    """The worker's cell, in a view of several cells."""
    quarantined: str | None = None
    """Why the worker gets no requests although it could take some (docs/quality.md). None for any other worker."""


class WaitReason(StrEnum):
    """Why a request waits in the Scheduler and is not placed now. The first reason that applies counts."""

    NO_WORKER = "no worker lives that it may use"
    NO_ROOM = "no worker has a place or memory for it"
    HARM = "placed now, it would keep other requests from their SLO"
    LATE = "placed now, it would miss its own SLO"
    TENANT_SHARE = "its tenant uses more than its share while others wait"
    DUE = "it is placed at the next look"


class QueuedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that waits in the Scheduler for a placement."""

    request_id: RequestId
    slo_class: SloClass
    num_before: int
    """Requests that are served before this one."""
    waited_s: float
    """Seconds that the request has waited."""
    wait_s: float
    """Seconds that the request is expected to wait from now on."""
    gives_up_s: float
    """Seconds until the request is refused if it still waits."""
    is_paused: bool = False
    """Whether the request has left its worker to requests of a higher class."""
    why: WaitReason = WaitReason.DUE
    """Why it would not be placed if it were considered now."""
    cell: CellName | UnsetType = UNSET
    """The cell in which the request waits, if there are several. `num_before` is of this cell."""


class RosterEntry(msgspec.Struct, frozen=True, array_like=True):
    """A worker, for an ingress that places requests while the Scheduler is away."""

    worker: WorkerId
    pool: Pool
    max_requests: int
    """Most requests that the worker takes at a time."""
    address: Address
    is_draining: bool = False
    """Whether an operator drains the worker: it gets only what no other worker takes."""


class RosterChange(msgspec.Struct, frozen=True, array_like=True):
    """What has changed in the roster of live workers."""

    since: int
    """The version that this is the change of. 0 if `joined` are all workers."""
    version: int
    joined: list[RosterEntry]
    left: list[WorkerId]
    num_links: int
    """Proved pairs of a prefill and a decode worker."""
    mismatch: str | None = None
    """Why no prefill worker can ever hand over to any decode worker: their KV blocks differ. None if some can."""


class Readiness(msgspec.Struct, frozen=True):
    """Whether both pools can serve."""

    num_prefill: int
    num_decode: int
    num_links: int
    """Proved pairs of a prefill and a decode worker."""
    mismatch: str | None = None
    """As `RosterChange.mismatch`."""
    cells: "dict[CellName, CellState] | None" = None
    """The state of each cell if there are several. The numbers are then those of all cells whose Schedulers answer."""
    may_lack: Pool | None = None
    """The pool that may be empty, because the other one does its work."""

    @property
    def is_ready(self) -> bool:
        """Whether some prefill worker can hand over to some decode worker, or one pool has workers and the other one
        may be empty and is. With several cells, one that is open is enough. If there is none, draining cells get the
        requests.
        """
        if self.cells is not None and CellState.OPEN in self.cells.values():
            return True
        if self.cells is not None and CellState.DRAINING not in self.cells.values():
            return False
        match self.may_lack:
            case Pool.PREFILL if not self.num_prefill:
                return self.num_decode > 0
            case Pool.DECODE if not self.num_decode:
                return self.num_prefill > 0
        return self.num_links > 0


class CellState(StrEnum):
    """Whether a cell takes new requests."""

    OPEN = "open"
    DRAINING = "draining"
    """An operator has said that the cell takes no new requests (`baton cells drain`). It gets those that no open cell
    can take.
    """
    AWAY = "away"
    """The cell's Scheduler does not answer."""
    NOT_READY = "not ready"
    """No prefill worker of the cell can hand over to a decode worker."""


class CellView(msgspec.Struct, frozen=True, kw_only=True):
    """A cell, as an ingress replica sees it."""

    name: CellName
    state: CellState
    num_prefill: int
    num_decode: int
    num_links: int
    """Proved pairs of a prefill and a decode worker."""
    num_open: int
    """Requests of all ingress replicas that are placed in the cell."""
    num_waiting: int
    """Requests of all ingress replicas that wait in the cell for a placement."""


class CellsView(msgspec.Struct, frozen=True, kw_only=True):
    """All cells of an application. `baton cells` prints them."""

    application: str
    """Serve's name of the application."""
    cells: list[CellView]


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """The Scheduler's view of all live workers."""

    workers: list[WorkerView]
    num_open: int = 0
    """Placed requests that are open."""
    num_waiting: int = 0
    """Requests that wait for a placement."""
    cells_away: list[CellName] | UnsetType = UNSET
    """The cells that the view lacks, because their Schedulers do not answer, if there are several cells."""

    @property
    def num_prefill(self) -> int:
        return sum(w.pool is Pool.PREFILL for w in self.workers)

    @property
    def num_decode(self) -> int:
        return sum(w.pool is Pool.DECODE for w in self.workers)

    @property
    def num_links(self) -> int:
        """Proved pairs of a prefill and a decode worker."""
        return sum(len(w.links) for w in self.workers)

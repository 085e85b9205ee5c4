"""What operators ask of the Scheduler, and what it answers: its state in full (`baton status`, `baton why`), and the
drains of workers (`baton drain`). A field that a later version adds has a default, so that processes of two versions
understand each other.
"""

from enum import StrEnum

import msgspec
from msgspec import UNSET, UnsetType

from cluster.messages.ids import CellName, Pool, SloClass, WorkerId
from cluster.messages.views import CellView, WaitReason

MOST_SHOWN = 200
"""Most links, pairs and holds of each kind that one answer has. Their numbers are exact. More makes answers of large
clusters longer; fewer hides links that an operator looks for.
"""


class WorkerCondition(StrEnum):
    """Whether a worker gets requests. The first condition that applies counts."""

    SUSPECTED = "suspected"
    """Its connection has ended, or several ingress replicas could not reach it. It gets no requests until it reports
    again.
    """
    DRAINING = "draining"
    """An operator drains it. It gets only what no other worker takes."""
    QUARANTINED = "quarantined"
    """It answers the quality probe wrongly. It gets no requests but probes."""
    RETIRING = "retiring"
    """The autoscaler will stop it. It gets only what no other worker of its pool takes."""
    STALE = "stale"
    """It has missed reports. It gets only what no other worker of its pool takes."""
    READY = "ready"


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that is known, whether it can be reached or not."""

    worker: WorkerId
    pool: Pool
    host: str
    """Address of the worker's node."""
    condition: WorkerCondition
    report_age_s: float
    """Seconds since its last report."""
    num_placed: int
    """Open requests that placement has charged to the worker."""
    num_open: int
    """Requests that the worker has, by its last report or by the charges: the larger number."""
    num_running: int
    """Requests in the engine's batch."""
    num_waiting: int
    """Requests that wait for a place in the engine's batch."""
    num_leases: int
    """Leases whose KV blocks the worker keeps. Prefill workers only."""
    max_requests: int
    """Most requests that the worker takes at a time."""
    kv_usage: float
    """Share of the KV blocks of the engine's memory in use, in [0, 1]."""
    kv_capacity_tokens: int
    """Size of the engine's KV cache in tokens. 0 if unknown."""
    kv_bytes_per_token: int = 0
    pace: float = 1.0
    """The time of the worker's steps, as a multiple of what is usual for its kind of engine."""
    num_links: int = 0
    """Proved links to live workers of the other pool."""
    num_holds: int = 0
    """Ingress replicas that get no placement on the worker now, because they could not reach it."""
    hold_s: float = 0.0
    """Seconds until the last of these holds ends."""
    wrong_answers: str | None = None
    """Why the quality probe has put the worker into quarantine. None if it has not. The last workers of a pool get
    requests nevertheless, and a drain is named before a quarantine: then `condition` is another one.
    """
    cell: CellName | UnsetType = UNSET
    """The worker's cell, if there are several."""

    @property
    def is_empty(self) -> bool:
        """Whether the worker has neither requests nor leases."""
        return not (self.num_open or self.num_leases)


class LinkDoubt(StrEnum):
    """Why a link is not proved."""

    NEVER_TRIED = "never tried"
    PROBING = "being proved now"
    FAILED = "the last attempt failed"
    DOUBTFUL = "a pull over it hung or failed, and it is proved anew"


class UnprovedLink(msgspec.Struct, frozen=True, kw_only=True):
    """A pair of live workers that hands nothing over, because no handoff between them has worked yet."""

    prefill: WorkerId
    decode: WorkerId
    doubt: LinkDoubt
    error: str | None = None
    """Why the last attempt failed, in the words of the decode worker."""
    retry_s: float = 0.0
    """Seconds until the link may be tried again."""


class DistrustedPair(msgspec.Struct, frozen=True, kw_only=True):
    """A pair of workers whose handoffs were wrong."""

    prefill: WorkerId
    decode: WorkerId
    num_strikes: int
    """Wrong handoffs, one after another."""
    barred_s: float
    """Seconds for which a convicted pair hands nothing over. 0 for a suspected pair, whose handoffs are verified."""


class PathReason(StrEnum):
    """Why a placed request was handed over, or was not."""

    HANDED_OVER = "handed over"
    ASKED = "the request asked for a path"
    NOT_POSSIBLE = "the request cannot be handed over (n > 1, or log-probabilities of the prompt)"
    ONE_TOKEN = "the request wants one token, which the prefill worker gives"
    NO_PREFILL_WORKER = "no prefill worker could take it"
    NO_DECODE_WORKER = "no decode worker could take it"
    BLIND = "most workers have missed reports, so nothing was predicted"
    NOT_PROVED = "the link of the pair that would take it is not proved"
    DISTRUSTED = "the pairs that are linked have handed over wrongly"
    DECODES_ITSELF = "the prefill workers decode requests themselves, and hand nothing over meanwhile"
    DEARER = "a whole request was predicted to cost less"


class PathCount(msgspec.Struct, frozen=True, kw_only=True):
    """The recent placements of one reason."""

    reason: PathReason
    num: int
    mean_prompt_tokens: float
    mean_new_tokens: float
    """Prompt tokens that were not expected in the cache of the worker that computes the prompt."""
    mean_extra_ttft_s: float = 0.0
    """By how much the predicted TTFT of the best handoff was longer than that of the choice, in seconds, where both
    were priced.
    """
    mean_extra_cost: float = 0.0
    """The same of the cost, in requests that miss their objectives."""


class SchedulerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What one Scheduler knows and does."""

    epoch: int
    up_s: float
    """Seconds since the process has started."""
    workers: list[WorkerStatus]
    num_open: int
    """Placed requests that are open."""
    waiting: dict[SloClass, int]
    """Requests that wait for a placement, by class."""
    oldest_wait_s: float
    """Seconds that the request has waited which has waited longest, among the first of the queue. 0 if none waits."""
    unproved: list[UnprovedLink]
    """At most MOST_SHOWN of them."""
    num_unproved: int
    distrusted: list[DistrustedPair]
    """At most MOST_SHOWN of them."""
    paths: list[PathCount]
    """The recent placements, by reason."""
    num_quarantined: int
    """Requests of which the loss of an engine is remembered."""
    mismatch: str | None = None
    """Why no prefill worker can ever hand over to any decode worker: their KV blocks differ."""
    wait_reasons: dict[WaitReason, int] = {}
    """Why the first requests of the queue wait, with their number. Requests behind them have no reason here."""
    num_indexed_blocks: int = 0
    """Different KV blocks that are known to be cached by a worker."""
    cell: CellName | UnsetType = UNSET
    """The Scheduler's cell, if there are several."""


class DrainAsk(msgspec.Struct, frozen=True, kw_only=True):
    """An operator drains a worker, or undoes that."""

    worker: WorkerId
    drains: bool
    force: bool = False
    """Whether the last worker of its pool may be drained."""


class DrainAnswer(msgspec.Struct, frozen=True, kw_only=True):
    was_draining: bool
    """Whether the worker has drained before."""


class StoreStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A server that keeps state, as the ingress replica that answers sees it."""

    name: str
    is_there: bool
    is_embedded: bool
    """Whether Baton runs it."""


class TierSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The tiers of each worker of a pool, by the config. None for a tier that is off."""

    dram_gib: float | None = None
    disk_gib: float | None = None


class ServiceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the config says of the service that operators are told with its state."""

    version: str = ""
    model: str = ""
    replicas: dict[Pool, int] = {}
    """Workers of each pool and cell that the config starts with."""
    is_scaled: bool = False
    """Whether an autoscaler changes the sizes of the pools."""
    tiers: dict[Pool, TierSettings] = {}
    keeps_receipts: int = 0
    """Route receipts that each ingress replica keeps."""


class ServiceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The whole service, as an ingress replica sees it. `baton status` and `baton why` read it."""

    application: str
    """Serve's name of the application."""
    settings: ServiceSettings
    replica_up_s: float
    """Seconds since the ingress replica that answers has started."""
    schedulers: list[SchedulerStatus]
    """Of each cell whose Scheduler answers."""
    cells: list[CellView]
    stores: list[StoreStatus]

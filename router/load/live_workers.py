"""LiveWorkers: the workers that report, their load, what they cache, and which pairs of them hand nothing over.

A worker exists by its reports: the first report adds the worker, and REPORT_TIMEOUT_S without a report removes it, so
that a restarted Scheduler knows all workers after one report interval. Time in which the Scheduler itself stood still
removes none (router/trust/silent_workers.py): it would forget all of them, and what they cache. A worker whose
connection to the Scheduler has ended, or that several ingresses cannot reach (router/trust/suspected_workers.py), gets
no requests until it reports again. What is known of that worker is kept, since it may well live. A worker that has
missed a few reports is stale (router/load/worker_state.py): it is used only if all workers of its pool are.
cluster/worker/watchdog.py finds an engine that lives and does not answer.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, final

import msgspec

from cluster.config.scheduler import MAX_INDEXED_BLOCKS
from cluster.messages.ids import IngressId, Pool, WorkerId
from cluster.messages.kv_events import KvEvents
from cluster.messages.reports import WorkerReport
from cluster.messages.views import ClusterView, RosterChange, RosterEntry, WorkerView
from router.links.link_plan import LinkPlan
from router.load.charge import Charge
from router.load.drains import Drains
from router.load.prefill_share import PrefillShare, lately
from router.load.roster import Roster
from router.load.worker_state import WorkerState
from router.prediction.learned_latency import LatencyModels
from router.prediction.worker_model import WorkerModel
from router.prefixes.index import PrefixIndex
from router.trust.handoff_trust import HandoffTrust
from router.trust.kv_formats import KvFormats
from router.trust.lost_workers import LostWorkers
from router.trust.quarantined_workers import QuarantinedWorkers
from router.trust.silent_workers import SilentWorkers
from router.trust.suspected_workers import SuspectedWorkers

REPORT_TIMEOUT_S: Final = 6.0
"""Report age after which a worker counts as gone, in seconds. Lower removes workers that are only busy; higher keeps
placing requests on workers that are dead.
"""
SORTED_AGE_S: Final = 0.05
"""Age up to which the workers that were sorted by pool are used again, in seconds. Lower sorts more often; higher uses
a worker for longer after its reports have stopped.
"""

RETIRING_S: Final = 30.0
"""Time for which a worker that will be stopped is used last after it was last named, in seconds. Higher keeps a
worker idle for longer when whoever sizes the pools is gone; lower gives it requests again when that is slow.
"""
LINKS_AGE_S: Final = 0.25
"""Age up to which the number of links is told again, in seconds. Lower counts more often while ingresses ask; higher
shows a link later.
"""


@final
class WorkersByPool:
    """The live workers of each pool, at one moment."""

    __slots__ = (
        "decodes",
        "draining_decodes",
        "draining_prefills",
        "is_empty",
        "made_at",
        "prefills",
        "quarantined",
        "room_until",
        "stale_decodes",
        "stale_prefills",
        "stale_share",
    )

    def __init__(
        self,
        fresh: list[WorkerState],
        stale: list[WorkerState],
        retiring: list[WorkerState],
        draining: list[WorkerState],
        made_at: float,
        room_until: int,
        quarantined: list[WorkerState],
    ) -> None:
        """`stale`: workers that have missed reports. `retiring`: those that will be stopped soon. `draining`: those
        that an operator drains. `quarantined`: those that get no requests but probes. The last two are in no other
        list.
        """
        self.quarantined = quarantined
        spare = [*retiring, *stale]
        self.stale_prefills = _of_pool(Pool.PREFILL, spare)
        """For requests that no other prefill worker can take."""
        self.stale_decodes = _of_pool(Pool.DECODE, spare)
        """For requests that no other decode worker can take."""
        self.prefills = _of_pool(Pool.PREFILL, fresh) or self.stale_prefills
        """Prefill workers whose reports are recent, or the stale ones where there are none."""
        self.decodes = _of_pool(Pool.DECODE, fresh) or self.stale_decodes
        """Decode workers whose reports are recent, or the stale ones where there are none."""
        self.draining_prefills = _of_pool(Pool.PREFILL, draining)
        """For requests that no worker of either pool can take otherwise."""
        self.draining_decodes = _of_pool(Pool.DECODE, draining)
        """For requests that no worker of either pool can take otherwise."""
        num_live = len(fresh) + len(stale)
        self.is_empty = not (fresh or spare or draining)
        self.stale_share = 1.0 - len(fresh) / num_live if num_live else 0.0
        """Share of the live workers that have missed reports."""
        self.made_at = made_at
        self.room_until = room_until
        """Number of placements (`LiveWorkers.num_placed`) below which no worker can be full."""


@final
class LiveWorkers:
    def __init__(self, max_indexed_blocks: int = MAX_INDEXED_BLOCKS) -> None:
        self.models = LatencyModels()
        self.index = PrefixIndex(max_indexed_blocks)
        self.by_id: dict[WorkerId, WorkerState] = {}
        """All workers that are known, also those that can probably not be reached."""
        self.num_placed = 0
        """Placements so far."""
        self.trust = HandoffTrust()
        """What verified handoffs have shown of the workers."""
        self.kv_formats = KvFormats()
        """What the KV blocks of the workers look like."""
        self.suspects = SuspectedWorkers()
        self.lost = LostWorkers()
        self.quarantined = QuarantinedWorkers()
        """The workers whose answers are wrong. Each pool keeps those of its workers that are its last."""
        self._roster = Roster()
        self._num_links = 0
        self._links_counted_at = float("-inf")
        self._prompt_share = PrefillShare()
        """Share of all workers' time that prompts take."""
        self._sorted = _not_sorted()
        self._silent = SilentWorkers()
        """How long the same workers have been silent."""
        self.drains = Drains()
        """The workers that an operator drains, and those that will be stopped soon."""
        self._num_of_kind: dict[str, int] | None = None
        """Workers of each kind. None if the workers have changed."""
        self.links = LinkPlan(lambda worker: not self.by_id[worker].charges, self.models.transfers)
        """The links between the workers, and which are proved next."""

    def add(self, report: WorkerReport, now: float) -> WorkerState | None:
        """Add the worker of a report. Returns None if the worker is known already."""
        if report.worker in self.by_id:
            return None
        added = WorkerState(report, WorkerModel(self.models.model(report.shape.kind)), self.models.bias, now)
        added.node_class = self.links.add(report, now)
        self.by_id[report.worker] = added
        self._silent.step(now)
        self._silent.heard(report.worker)
        if report.shape.kv_format is not None:
            self.kv_formats.add(report.worker, report.pool, report.shape.kv_format)
        self._roster.put(_entry_of(added, self.drains))
        self._changed()
        return added

    def reported(self, report: WorkerReport, now: float) -> WorkerState:
        """Take a report of a worker that was added, and forget the workers that have been silent for too long."""
        state = self.by_id[report.worker]
        if state.is_lost or now - state.reported_at > REPORT_TIMEOUT_S:
            self._changed()
        if state.reported(report, now):
            self._sorted.room_until = 0
        for step in report.steps:
            state.model.observe(step)
        self.links.reported(report, now)
        for transfer in report.transfers:
            self.models.transfers.observe(
                transfer.prefill,
                report.worker,
                report.links.get(transfer.prefill),
                self.links.class_of(transfer.prefill, report.worker),
                transfer.num_tokens * report.shape.kv_bytes_per_token,
                transfer.seconds,
            )
        self._silent.step(now)
        self._silent.heard(report.worker)
        self._forget_the_silent(now)
        return state

    def report_of(self, worker: WorkerId) -> WorkerReport | None:
        """The latest report of a worker. None if the worker is not known."""
        state = self.by_id.get(worker)
        return state.report if state is not None else None

    def suspect(self, ingress: IngressId | None, worker: WorkerId, now: float) -> None:
        """An ingress could not reach the worker."""
        if worker in self.by_id and self.suspects.suspect(ingress, worker, now):
            self.lose(worker)

    def lose(self, worker: WorkerId) -> None:
        """The worker can probably not be reached."""
        if (known := self.by_id.get(worker)) is not None:
            known.is_lost = True
            self._changed()

    def forget(self, worker: WorkerId, now: float) -> None:
        """The worker is gone."""
        self.by_id.pop(worker, None)
        self._silent.forget(worker)
        self._changed()
        self.kv_formats.remove(worker)
        self.suspects.forget(worker)
        self._roster.remove(worker)
        self.index.forget(worker)
        self.models.forget(worker)
        self.trust.pairs.forget(worker)
        self.links.forget(worker, now)

    def handle_kv_events(self, events: KvEvents, now: float) -> bool:
        """Returns True to ask for a snapshot of what the worker caches."""
        if events.worker not in self.by_id:  # `forget` would never remove what the worker caches
            return True
        return self.index.handle(events, now)

    def by_pool(self, now: float) -> WorkersByPool:
        """The live workers, sorted by pool at most SORTED_AGE_S ago."""
        if now - self._sorted.made_at > SORTED_AGE_S:
            self._silent.step(now)
            live, quarantined = apart(list(self.live(now)), self.quarantined.of(now), self.drains.workers)
            draining = list[WorkerState]()
            room = min([worker.room - len(worker.charges) for worker in live], default=0)
            if drains := self.drains.workers:
                draining = [worker for worker in live if worker.worker in drains]
                live = [worker for worker in live if worker.worker not in drains]
            named = self.drains.retiring(now)
            retiring = [worker for worker in live if worker.worker in named] if named else []
            fresh = [worker for worker in live if worker not in retiring and not worker.is_stale(now)]
            stale = [worker for worker in live if worker not in retiring and worker.is_stale(now)]
            room += self.num_placed
            self._sorted = WorkersByPool(fresh, stale, retiring, draining, now, room, quarantined)
        return self._sorted

    def drain(self, workers: Iterable[WorkerId]) -> None:
        """An operator drains these workers, and no others."""
        before = self.drains.workers
        self.drains.put(workers)
        for worker in before ^ self.drains.workers:
            if (state := self.by_id.get(worker)) is not None:
                self._roster.put(_entry_of(state, self.drains))
        self._changed()

    def retire(self, workers: Iterable[WorkerId], now: float) -> None:
        """These workers will be stopped soon: no others will. They get the requests that no other worker takes."""
        if self.drains.retire(frozenset(workers), now + RETIRING_S):
            self._changed()

    def prompt_use(self, now: float) -> float:
        """Share of all workers' time that prompts took lately."""
        return lately(self._prompt_share.shares(now))

    def placed(self, charge: Charge, block_hashes: Sequence[bytes], now: float) -> None:
        """A request was charged to its workers, which will cache its prompt."""
        for worker in (charge.placement.prefill, charge.placement.decode):
            if worker is not None:
                self.index.predict(worker, block_hashes, now)
        self._prompt_share.note(charge.prefill_s / max(1, len(self.by_id)), now)
        self.num_placed += 1

    def num_of_kind(self, kind: str) -> int:
        """Workers of one kind (EngineShape.kind)."""
        if self._num_of_kind is None:
            self._num_of_kind = dict(Counter(state.report.shape.kind for state in self.by_id.values()))
        return self._num_of_kind.get(kind, 0)

    def roster(self, since: int, now: float) -> RosterChange:
        """What has changed in the roster since a version. 0 stands for everything."""
        self._silent.step(now)
        self._forget_the_silent(now)
        if now - self._links_counted_at > LINKS_AGE_S:
            live = {state.worker for state in self.live(now)}
            self._links_counted_at = now
            self._num_links = sum([len(state.links.keys() & live) for state in self.live(now)])
        change = self._roster.since(since, self._num_links)
        mismatch = self.kv_formats.mismatch
        return change if mismatch is None else msgspec.structs.replace(change, mismatch=mismatch)

    def view(self, now: float) -> ClusterView:
        """A snapshot of the live workers and of the links among them."""
        live = {state.worker: state for state in self.live(now)}
        quarantined = self.quarantined.of(now)
        return ClusterView(
            workers=[
                WorkerView(
                    worker=state.worker,
                    pool=state.pool,
                    num_placed=state.num_placed,
                    max_requests=state.report.max_requests,
                    host=state.report.address.host,
                    transport=state.report.transport,
                    links={
                        prefill: self.links.speed(prefill, state.worker) for prefill in state.links if prefill in live
                    },
                    quarantined=quarantined.get(state.worker),
                )
                for state in live.values()
            ],
        )

    def validate(self) -> None:
        """Assert every invariant. Tests call it after each event."""
        for worker, state in self.by_id.items():
            assert worker == state.worker
            state.validate()
        self.index.validate()
        self.trust.pairs.validate()
        self.links.validate()
        self.suspects.validate()
        self._roster.validate(frozenset(self.by_id))
        self._silent.validate(frozenset(self.by_id))
        lists = self._sorted
        used = (*lists.prefills, *lists.decodes, *lists.stale_prefills, *lists.stale_decodes)
        draining = (*lists.draining_prefills, *lists.draining_decodes)
        assert not self.drains.workers & {worker_state.worker for worker_state in used}
        assert self.drains.workers >= {worker_state.worker for worker_state in draining}
        for worker_state in (*used, *draining):
            assert self.by_id[worker_state.worker] is worker_state
            assert not worker_state.is_lost
            if self.num_placed < lists.room_until:
                assert len(worker_state.charges) < worker_state.room

    def _forget_the_silent(self, now: float) -> None:
        while (worker := self._silent.longest(REPORT_TIMEOUT_S)) is not None:
            if worker not in self.drains.workers and worker not in self.drains.retiring(now):
                self.lost.note(self.by_id[worker].pool, worker)
            self.forget(worker, now)

    def _changed(self) -> None:
        """Another set of workers lives."""
        self._sorted = _not_sorted()
        self._num_of_kind = None
        self._links_counted_at = float("-inf")

    def live(self, now: float) -> Iterable[WorkerState]:
        """The workers whose reports are not too old, and that can probably be reached."""
        return (w for w in self.by_id.values() if now - w.reported_at <= REPORT_TIMEOUT_S and not w.is_lost)


def _not_sorted() -> WorkersByPool:
    """Has the workers sorted when they are needed next."""
    return WorkersByPool([], [], [], [], float("-inf"), 0, [])


def apart(
    live: list[WorkerState], quarantined: Mapping[WorkerId, str], draining: frozenset[WorkerId]
) -> tuple[list[WorkerState], list[WorkerState]]:
    """The workers that may get requests, and those in quarantine. A pool of which all live workers that do not drain
    are in quarantine keeps them: wrong answers of all of them are rather the fault of those who judge, and the workers
    that drain will be gone.
    """
    if not quarantined:
        return live, []
    serving = {worker.pool for worker in live if worker.worker not in quarantined and worker.worker not in draining}
    apart = [worker for worker in live if worker.worker in quarantined and worker.pool in serving]
    return [worker for worker in live if worker not in apart], apart


def _entry_of(state: WorkerState, drains: Drains) -> RosterEntry:
    report, is_draining = state.report, state.worker in drains.workers
    return RosterEntry(state.worker, state.pool, report.max_requests, report.address, is_draining)


def _of_pool(pool: Pool, workers: list[WorkerState]) -> list[WorkerState]:
    return [worker for worker in workers if worker.pool is pool]

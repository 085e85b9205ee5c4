"""StatusReader: the Scheduler's state in full, for operators. Pure."""

from collections import Counter
from collections.abc import Callable
from typing import Final, final

from cluster.messages.ids import Pool, SloClass, WorkerId
from cluster.messages.operations import (
    MOST_SHOWN,
    LinkDoubt,
    SchedulerStatus,
    UnprovedLink,
    WorkerCondition,
    WorkerStatus,
)
from cluster.messages.views import QueuedRequest
from router.load.charges import Charges
from router.load.live_workers import LiveWorkers, apart
from router.load.worker_state import WorkerState
from router.placement.recent_paths import RecentPaths
from router.quarantine.quarantine import Quarantine

MOST_LOOKED_AT: Final = 20_000
"""Pairs of workers that are looked at for links that are not proved. The number of them is exact up to it, and a lower
bound beyond. Higher keeps the Scheduler of a very large cluster from placements for longer, some 0.3 us for each pair.
"""


@final
class StatusReader:
    __slots__ = ("_began_at", "_charges", "_paths", "_quarantine", "_queued", "_waiting", "_workers", "epoch")

    def __init__(
        self,
        workers: LiveWorkers,
        charges: Charges,
        quarantine: Quarantine,
        paths: RecentPaths,
        waiting: Callable[[], dict[SloClass, int]],
        queued: Callable[[float], list[QueuedRequest]],
    ) -> None:
        """`waiting`: how many requests of each class wait; `queued`: the first of them."""
        self._workers = workers
        self._charges = charges
        self._quarantine = quarantine
        self._paths = paths
        self._waiting = waiting
        self._queued = queued
        self._began_at: float | None = None
        self.epoch = 0
        """Of the Scheduler process. 0 if it has none."""

    def begin(self, epoch: int, now: float) -> None:
        """The Scheduler process serves from now on."""
        self.epoch, self._began_at = epoch, now

    def read(self, now: float) -> SchedulerStatus:
        workers = self._workers
        unproved, num_unproved = self._unproved(now)
        waiting = self._waiting()
        queued = self._queued(now) if waiting else []
        return SchedulerStatus(
            epoch=self.epoch,
            up_s=now - self._began_at if self._began_at is not None else 0.0,
            workers=self._worker_statuses(now),
            num_open=len(self._charges),
            waiting=waiting,
            oldest_wait_s=max((request.waited_s for request in queued), default=0.0),
            wait_reasons=dict(Counter(request.why for request in queued)),
            unproved=unproved,
            num_unproved=num_unproved,
            distrusted=workers.trust.pairs.distrusted(now)[:MOST_SHOWN],
            paths=self._paths.counts(),
            num_quarantined=len(self._quarantine),
            mismatch=workers.kv_formats.mismatch,
            num_indexed_blocks=workers.index.num_blocks,
        )

    def _worker_statuses(self, now: float) -> list[WorkerStatus]:
        retiring = self._workers.drains.retiring(now)
        holds: dict[WorkerId, list[float]] = {}
        for held in self._workers.suspects.held(now):
            holds.setdefault(held.worker, []).append(held.until - now)
        live_states = list(self._workers.live(now))
        live = frozenset([state.worker for state in live_states])
        wrong = self._workers.quarantined.of(now)
        unused = frozenset([state.worker for state in apart(live_states, wrong, self._workers.drains.workers)[1]])
        linked: dict[WorkerId, int] = {}
        for state in self._workers.by_id.values():
            for prefill in state.links if state.worker in live else ():
                if prefill in live:
                    linked[prefill] = linked.get(prefill, 0) + 1
                    linked[state.worker] = linked.get(state.worker, 0) + 1
        return [
            self._worker_status(
                state,
                self._condition(state, retiring, unused, now),
                wrong.get(state.worker),
                holds.get(state.worker, []),
                linked.get(state.worker, 0),
                now,
            )
            for state in self._workers.by_id.values()
        ]

    def _worker_status(
        self,
        state: WorkerState,
        condition: WorkerCondition,
        wrong_answers: str | None,
        holds: list[float],
        num_links: int,
        now: float,
    ) -> WorkerStatus:
        report, load = state.report, state.report.load
        return WorkerStatus(
            worker=state.worker,
            pool=state.pool,
            host=state.host,
            condition=condition,
            report_age_s=now - state.reported_at,
            num_placed=state.num_placed,
            num_open=max(state.num_placed, load.num_running + load.num_waiting, load.num_open or 0),
            num_running=load.num_running,
            num_waiting=load.num_waiting,
            num_leases=load.num_leases,
            max_requests=report.max_requests,
            kv_usage=load.kv_cache_usage,
            kv_capacity_tokens=report.shape.kv_capacity_tokens,
            kv_bytes_per_token=report.shape.kv_bytes_per_token,
            pace=state.model.pace,
            num_links=num_links,
            num_holds=len(holds),
            hold_s=max(holds, default=0.0),
            wrong_answers=wrong_answers,
        )

    def _condition(
        self, state: WorkerState, retiring: frozenset[WorkerId], quarantined: frozenset[WorkerId], now: float
    ) -> WorkerCondition:
        if state.is_lost:
            return WorkerCondition.SUSPECTED
        if state.worker in self._workers.drains.workers:
            return WorkerCondition.DRAINING
        if state.worker in quarantined:
            return WorkerCondition.QUARANTINED
        if state.worker in retiring:
            return WorkerCondition.RETIRING
        return WorkerCondition.STALE if state.is_stale(now) else WorkerCondition.READY

    def _unproved(self, now: float) -> tuple[list[UnprovedLink], int]:
        """The links that are not proved, at most MOST_SHOWN, and their number."""
        live = list(self._workers.live(now))
        prefills = [state for state in live if state.pool is Pool.PREFILL]
        shown: list[UnprovedLink] = []
        num = num_looked_at = 0
        for decode in live:
            if decode.pool is not Pool.DECODE or num_looked_at >= MOST_LOOKED_AT:
                continue
            num_looked_at += len(prefills)
            for prefill in prefills:
                if prefill.worker not in decode.links:
                    num += 1
                    if len(shown) < MOST_SHOWN:
                        shown.append(self._doubt(prefill, decode, now))
        return shown, num

    def _doubt(self, prefill: WorkerState, decode: WorkerState, now: float) -> UnprovedLink:
        error = decode.report.link_failures.get(prefill.worker)
        is_probed, is_suspected, retry_s = self._workers.links.doubt_of(prefill.worker, decode.worker, now)
        doubt = LinkDoubt.NEVER_TRIED
        if is_probed:
            doubt = LinkDoubt.PROBING
        elif error is not None:
            doubt = LinkDoubt.FAILED
        elif is_suspected:
            doubt = LinkDoubt.DOUBTFUL
        return UnprovedLink(prefill=prefill.worker, decode=decode.worker, doubt=doubt, error=error, retry_s=retry_s)

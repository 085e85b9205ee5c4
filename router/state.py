"""RouterState: what the Scheduler knows of the workers, and the placements it has charged to them.

`handle(event, now)`, `handle_kv_events(events, now)`, `place(request, now)` and `asker_gone(asker)` are the only
mutators; `now` is monotonic seconds. A worker exists by its reports: the first one adds it, REPORT_TIMEOUT_S without
one removes it, so that a restarted Scheduler is whole again after one report interval. A lost worker is out at once,
until it reports again. A request is charged when it is placed (anew, if it was placed before) and released when it is
closed, or when the ingress that asked is gone.
"""

from collections import Counter
from typing import NamedTuple, assert_never

from cluster.types import (
    Address,
    ClusterView,
    FirstToken,
    KvEvents,
    PairSuspected,
    Path,
    Placement,
    PlacementRequest,
    Pool,
    PrefillDone,
    Rejection,
    RequestClosed,
    RequestId,
    SchedulerEvent,
    WorkerId,
    WorkerLost,
    WorkerReport,
    WorkerView,
)
from router import placement
from router.prefix_index import PrefixIndex
from router.prefix_memory import PrefixMemory

REPORT_TIMEOUT_S = 6.0
"""Several report intervals: shorter drops workers that are merely busy, longer keeps placing on dead ones."""

QUARANTINE_S = 600.0
"""For a pair whose hand-over was wrong. The cause is a defect, of software or of hardware: time to look at it."""

CHARGE_TIMEOUT_S = 1800.0
"""For an ingress that lives and whose word of a request's end was lost. Longer than any request runs."""


class _Charge(NamedTuple):
    placement: Placement
    charged_at: float
    asker: object


class RouterState:
    __slots__ = ("_charges", "_prefixes", "_reports", "_suspects", "_turn", "index")

    def __init__(self) -> None:
        self._reports: dict[WorkerId, tuple[WorkerReport, float]] = {}
        self._charges: dict[RequestId, _Charge] = {}
        self._suspects: dict[tuple[WorkerId, WorkerId], float] = {}
        """Pairs of prefill and decode workers, and until when they hand over nothing."""
        self._prefixes = PrefixMemory()
        self.index = PrefixIndex()
        """To be read only."""
        self._turn = 0

    def handle(self, event: WorkerReport | SchedulerEvent, now: float) -> None:
        match event:
            case WorkerReport():
                self._reports[event.worker] = (event, now)
                self._forget_the_silent(now)
            case WorkerLost():
                self._reports.pop(event.worker, None)
                self.index.forget(event.worker)
            case RequestClosed():
                self._charges.pop(event.request_id, None)
            case PrefillDone() | FirstToken():
                pass  # charges end with their request
            case PairSuspected():
                self._suspects[event.prefill, event.decode] = now + QUARANTINE_S
            case _:
                assert_never(event)

    def handle_kv_events(self, events: KvEvents, now: float) -> None:
        if events.worker in self._reports:  # nobody would forget what others cache
            self.index.handle(events, now)

    def wants_kv_snapshot(self, report: WorkerReport) -> bool:
        """We have not heard all that this worker has sent of its caches."""
        return self.index.check(report.worker, report.kv_events_through)

    def place(self, request: PlacementRequest, now: float, asker: object = None) -> Placement | Rejection:
        """Choose workers and charge the request to them. `asker`: whose end (`asker_gone`) ends the request too."""
        self._charges.pop(request.request_id, None)
        suspects = frozenset(pair for pair, until in self._suspects.items() if now < until)
        workers = self.view(now).workers
        usable = {w.worker for w in workers if w.pool is Pool.DECODE} - request.excluded
        held = self._prefixes.longest(request.prefix_chain, usable.__contains__)
        answer = placement.place(request, workers, self._turn, suspects, held)
        if isinstance(answer, Placement):
            self._prefixes.remember(request.prefix_chain, answer.generating)
            self._charges[request.request_id] = _Charge(answer, now, asker)
            self._turn += 1
        return answer

    def asker_gone(self, asker: object) -> None:
        """An ingress that was killed never closes its requests."""
        self._charges = {request: charge for request, charge in self._charges.items() if charge.asker is not asker}

    def prefill_workers(self, now: float) -> frozenset[WorkerId]:
        return frozenset(w.worker for w in self.view(now).workers if w.pool is Pool.PREFILL)

    def address_of(self, worker: WorkerId) -> Address | None:
        """Where a worker that reports listens."""
        known = self._reports.get(worker)
        return known[0].address if known else None

    def view(self, now: float) -> ClusterView:
        live = {w: (report, at) for w, (report, at) in self._reports.items() if now - at <= REPORT_TIMEOUT_S}
        placed = self._num_placed()
        return ClusterView(
            workers=[
                WorkerView(
                    worker=worker,
                    pool=report.pool,
                    load=report.load,
                    num_placed=placed[worker],
                    max_requests=report.max_requests,
                    host=report.address.host,
                    transport=report.transport,
                    links={prefill: speed for prefill, speed in report.links.items() if prefill in live},
                    report_age_s=now - reported_at,
                )
                for worker, (report, reported_at) in live.items()
            ]
        )

    def validate(self) -> None:
        """Assert every invariant. Tests call it after each event."""
        for worker, (report, _) in self._reports.items():
            assert worker == report.worker
        self.index.validate()
        for charged, _, _ in self._charges.values():
            assert (charged.prefill is None) == (charged.path is Path.DECODE)
            assert (charged.decode is None) == (charged.path is Path.PREFILL)

    def _forget_the_silent(self, now: float) -> None:
        for worker in [w for w, (_, at) in self._reports.items() if now - at > REPORT_TIMEOUT_S]:
            del self._reports[worker]
            self.index.forget(worker)
        for request_id in [r for r, charge in self._charges.items() if now - charge.charged_at > CHARGE_TIMEOUT_S]:
            del self._charges[request_id]
        for pair in [p for p, until in self._suspects.items() if now >= until]:
            del self._suspects[pair]

    def _num_placed(self) -> Counter[WorkerId]:
        charged = (charge.placement for charge in self._charges.values())
        return Counter(worker for placed in charged for worker in (placed.prefill, placed.decode) if worker is not None)

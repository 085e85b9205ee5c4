"""RouterState: what the Scheduler knows of the workers, and the placements it has charged to them.

`handle(event, now)` and `place(request, now)` are the only mutators; `now` is monotonic seconds. A worker exists by
its reports: the first one adds it, REPORT_TIMEOUT_S without one removes it, so that a restarted Scheduler is whole
again after one report interval. A lost worker is out at once, until it reports again. A request is charged when it is
placed (anew, if it was placed before) and released when it is closed.
"""

from typing import assert_never

from cluster.types import (
    ClusterView,
    Placement,
    PlacementRequest,
    Pool,
    Rejection,
    RequestClosed,
    RequestId,
    WorkerId,
    WorkerLost,
    WorkerReport,
    WorkerView,
)
from router import placement

REPORT_TIMEOUT_S = 6.0
"""Several report intervals: shorter drops workers that are merely busy, longer keeps placing on dead ones."""


class RouterState:
    __slots__ = ("_charges", "_reports", "_turn")

    def __init__(self) -> None:
        self._reports: dict[WorkerId, tuple[WorkerReport, float]] = {}
        self._charges: dict[RequestId, Placement] = {}
        self._turn = 0

    def handle(self, event: WorkerReport | WorkerLost | RequestClosed, now: float) -> None:
        match event:
            case WorkerReport():
                self._reports[event.worker] = (event, now)
            case WorkerLost():
                self._reports.pop(event.worker, None)
            case RequestClosed():
                self._charges.pop(event.request_id, None)
            case _:
                assert_never(event)

    def place(self, request: PlacementRequest, now: float) -> Placement | Rejection:
        """Choose workers and charge the request to them."""
        self._charges.pop(request.request_id, None)
        answer = placement.place(request, self.view(now).workers, self._turn)
        if isinstance(answer, Placement):
            self._charges[request.request_id] = answer
            self._turn += 1
        return answer

    def prefill_workers(self, now: float) -> frozenset[WorkerId]:
        return frozenset(w.worker for w in self.view(now).workers if w.pool is Pool.PREFILL)

    def view(self, now: float) -> ClusterView:
        self._drop_silent(now)
        placed = self._num_placed()
        return ClusterView(
            workers=[
                WorkerView(
                    worker=worker,
                    pool=report.pool,
                    load=report.load,
                    num_placed=placed.get(worker, 0),
                    connected=frozenset(p for p in report.connected if p in self._reports),
                    report_age_s=now - reported_at,
                )
                for worker, (report, reported_at) in self._reports.items()
            ]
        )

    def validate(self) -> None:
        """Assert every invariant. Tests call it after each event."""
        for worker, (report, _) in self._reports.items():
            assert worker == report.worker
        for charged in self._charges.values():
            assert (charged.prefill is None) == (charged.path == "D")

    def _drop_silent(self, now: float) -> None:
        silent = [w for w, (_, reported_at) in self._reports.items() if now - reported_at > REPORT_TIMEOUT_S]
        for worker in silent:
            del self._reports[worker]

    def _num_placed(self) -> dict[WorkerId, int]:
        counts: dict[WorkerId, int] = {}
        for charged in self._charges.values():
            for worker in (charged.prefill, charged.decode):
                if worker is not None:
                    counts[worker] = counts.get(worker, 0) + 1
        return counts

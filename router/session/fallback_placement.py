"""Where a request runs while the Scheduler is away, so that its absence costs goodput and not availability. Pure.

One ingress replica's own choice: the whole request on a worker of the decode pool (path D), or of the prefill pool
where that has no room (path P), as the Scheduler last saw them. The worker with the fewest open requests of this
replica takes it, those with equally many take turns. What other replicas do is not known here, and neither is who has
died since: the session finds that out and asks again without that worker. Nothing is handed over, so no choice can be
wrong, only slow.
"""

from collections import Counter
from collections.abc import Sequence

from cluster.messages.ids import Path, Pool, RequestId, WorkerId
from cluster.messages.placement import Placement, PlacementRequest, Rejection
from cluster.messages.views import WorkerView
from cluster.slo import SloConfig

RETRY_AFTER_S = 5.0
"""Serve replaces a Scheduler in some seconds."""


class FallbackPlacement:
    __slots__ = ("_num_open", "_open", "_slo", "_turn", "workers")

    def __init__(self, slo: SloConfig) -> None:
        self._slo = slo
        self.workers: Sequence[WorkerView] = ()
        """Those that live, by the Scheduler's latest word."""
        self._open: dict[RequestId, WorkerId] = {}
        self._num_open: Counter[WorkerId] = Counter()
        self._turn = 0

    def placed(self, request_id: RequestId, worker: WorkerId) -> None:
        """This replica's request generates there, whoever has chosen it; anew, if it was placed before."""
        self.closed(request_id)
        self._open[request_id] = worker
        self._num_open[worker] += 1

    def closed(self, request_id: RequestId) -> None:
        worker = self._open.pop(request_id, None)
        if worker is not None:
            self._num_open[worker] -= 1
            if not self._num_open[worker]:
                del self._num_open[worker]

    def outage_wait_s(self, request: PlacementRequest) -> float:
        """How long the request may wait for a Scheduler that knows a worker: no time where one is known here."""
        return 0.0 if self.workers else self._slo.of(request.slo_class).outage_wait_s

    def place(self, request: PlacementRequest) -> Placement | Rejection:
        usable = [w for w in self.workers if w.worker not in request.excluded]
        paths = (Path.DECODE, Path.PREFILL) if request.path is None else (request.path,)
        for path, pool in ((Path.DECODE, Pool.DECODE), (Path.PREFILL, Pool.PREFILL)):
            of_pool = [w for w in usable if w.pool is pool and self._num_open[w.worker] < w.max_requests]
            if path in paths and of_pool:
                return self._on(self._least_loaded(of_pool), path, request)
        if request.path is not None:
            why = f"nobody else takes a request on path {request.path} now"
        elif usable:
            why = "all workers have as many requests as they take"
        else:
            why = "no worker is known"
        is_overload = bool(usable) and request.path is None
        return Rejection(retry_after_s=RETRY_AFTER_S, why=f"the Scheduler is away, and {why}", is_overload=is_overload)

    def _least_loaded(self, workers: Sequence[WorkerView]) -> WorkerId:
        self._turn += 1
        start = self._turn % len(workers)
        return min([*workers[start:], *workers[:start]], key=lambda w: self._num_open[w.worker]).worker

    def _on(self, worker: WorkerId, path: Path, request: PlacementRequest) -> Placement:
        # How long the prompt takes alone is not known here: its objectives are those of a short one.
        return Placement(
            path=path,
            prefill=worker if path is Path.PREFILL else None,
            decode=worker if path is Path.DECODE else None,
            why="the Scheduler is away: fewest open requests of this ingress replica",
            slo=self._slo.of(request.slo_class).resolve(0.0, request.ttft_s, request.tpot_s),
            num_engines_lost=request.num_engines_lost,
        )

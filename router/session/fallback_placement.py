"""Placement by an ingress while the Scheduler is away, so that its absence costs goodput and not availability. Pure.

An ingress places the whole request on a decode worker (path D), or on a prefill worker if no decode worker has room
(path P). The workers are those of the Scheduler's latest roster. The worker with the fewest open requests of this
ingress gets the request; equals are chosen one after another. A worker that an operator drains gets only what no other
worker takes. An ingress does not know the requests of other ingresses, nor the workers that have died since then. A
session finds a dead worker by its failure and asks again without that worker. There is no handoff, so a choice can be
slow but not wrong.
"""

from collections import Counter
from collections.abc import Collection, Sequence

from cluster.messages.ids import Path, Pool, RequestId, WorkerId
from cluster.messages.placement import Placement, PlacementRequest, Rejection
from cluster.messages.views import RosterEntry
from cluster.slo import SloConfig

RETRY_AFTER_S = 5.0
"""Retry-After while the Scheduler is away, in seconds. Serve replaces a Scheduler in some seconds. Lower brings
requests back too early; higher keeps them away from a Scheduler that is back.
"""


class FallbackPlacement:
    __slots__ = ("_next", "_num_open", "_open", "_slo", "workers")

    def __init__(self, slo: SloConfig) -> None:
        self._slo = slo
        self.workers: Collection[RosterEntry] = ()
        """The live workers of the Scheduler's latest roster."""
        self._open: dict[RequestId, WorkerId] = {}
        self._num_open: Counter[WorkerId] = Counter()
        self._next = 0

    def placed(self, request_id: RequestId, worker: WorkerId) -> None:
        """A request of this ingress generates on the worker, by a choice of the Scheduler or of this ingress. An
        earlier placement of the request does not count any more.
        """
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
        """Seconds for which the request may wait for a Scheduler with live workers. 0 if a worker is known here that
        the request was not lost with. In an update, a request may be lost with all of them: workers leave while the
        Scheduler is replaced.
        """
        is_outage = request.pinned is None and (not self.workers or (request.lost and not self._usable(request)))
        return self._slo.of(request.slo_class).outage_wait_s if is_outage else 0.0

    def place(self, request: PlacementRequest) -> Placement | Rejection:
        if request.pinned is not None:
            return Rejection(retry_after_s=RETRY_AFTER_S, why="the Scheduler is away, and probes wait for it")
        usable = self._usable(request)
        paths = (Path.DECODE, Path.PREFILL) if request.path is None else (request.path,)
        with_room = [worker for worker in usable if self._num_open[worker.worker] < worker.max_requests]
        for is_draining in (False, True):
            for path, pool in ((Path.DECODE, Pool.DECODE), (Path.PREFILL, Pool.PREFILL)):
                of_pool = [one for one in with_room if one.pool is pool and one.is_draining is is_draining]
                if path in paths and of_pool:
                    return self._on(self._least_loaded(of_pool), path, request)
        if request.path is not None:
            why = f"no worker takes a request on path {request.path} now"
        elif usable:
            why = "all workers have as many requests as they can take"
        else:
            why = "no worker is known"
        is_overload = bool(usable) and request.path is None
        return Rejection(retry_after_s=RETRY_AFTER_S, why=f"the Scheduler is away, and {why}", is_overload=is_overload)

    def _usable(self, request: PlacementRequest) -> list[RosterEntry]:
        return [entry for entry in self.workers if entry.worker not in request.excluded]

    def _least_loaded(self, workers: Sequence[RosterEntry]) -> WorkerId:
        self._next += 1
        start = self._next % len(workers)
        return min([*workers[start:], *workers[:start]], key=lambda w: self._num_open[w.worker]).worker

    def _on(self, worker: WorkerId, path: Path, request: PlacementRequest) -> Placement:
        # The prefill time of the prompt is not known here, so the objectives are those of a short prompt.
        return Placement(
            path=path,
            prefill=worker if path is Path.PREFILL else None,
            decode=worker if path is Path.DECODE else None,
            why="the Scheduler is away: fewest open requests of this ingress replica",
            slo=self._slo.of(request.slo_class).resolve(0.0, request.ttft_s, request.tpot_s),
            num_engines_lost=request.num_engines_lost,
        )

"""A Scheduler whose placements a test can foresee: it takes workers one after another, and records what it hears."""

import asyncio

from cluster.messages.ids import IngressId, Path, Pool, RequestId, WorkerId
from cluster.messages.kv_events import KvEvents
from cluster.messages.placement import Placement, PlacementRequest, Rejection
from cluster.messages.reports import ReportReply, WorkerReport
from cluster.messages.scheduler_events import RequestClosed, SchedulerEvent, WorkerLost


class RecordingScheduler:
    def __init__(self, path: Path | None = None, max_open: int = 1_000_000) -> None:
        """`path` is that of every request whose pools live, or None for all paths one after another. Requests above
        `max_open` are refused."""
        self.told: list[SchedulerEvent] = []
        self.reports: list[WorkerReport] = []
        self.events: list[KvEvents] = []
        self.heard_at: list[float] = []
        """When each report came, in seconds of the event loop's clock."""
        self.wants_snapshot = False
        self.open: set[RequestId] = set()
        self._path, self._max_open = path, max_open
        self._live: dict[WorkerId, Pool] = {}
        self._turn = 0

    async def place(self, request: PlacementRequest, ingress: IngressId | None = None) -> Placement | Rejection:
        prefills, decodes = (self._usable(pool, request) for pool in Pool)
        possible = {
            Path.PREFILL_DECODE: bool(prefills and decodes),
            Path.DECODE: bool(decodes),
            Path.PREFILL: bool(prefills),
        }
        paths = [path for path, is_possible in possible.items() if is_possible]
        if not paths or len(self.open) >= self._max_open:
            return Rejection(retry_after_s=2.0, why="full")
        self.open.add(request.request_id)
        self._turn += 1
        path = self._path if self._path in paths else paths[self._turn % len(paths)]
        return Placement(
            path=path,
            prefill=None if path is Path.DECODE else prefills[self._turn % len(prefills)],
            decode=None if path is Path.PREFILL else decodes[self._turn % len(decodes)],
            why="its turn",
        )

    def tell(self, event: SchedulerEvent) -> None:
        self.told.append(event)
        if isinstance(event, RequestClosed):
            self.open.discard(event.request_id)
        if isinstance(event, WorkerLost):
            self._live.pop(event.worker, None)

    def report(self, report: WorkerReport) -> ReportReply:
        self.reports.append(report)
        self.heard_at.append(asyncio.get_running_loop().time())
        self._live[report.worker] = report.pool
        wants, self.wants_snapshot = self.wants_snapshot, False
        return ReportReply(wants_kv_snapshot=wants)

    def kv_events(self, events: KvEvents) -> bool:
        self.events.append(events)
        return False

    def _usable(self, pool: Pool, request: PlacementRequest) -> list[WorkerId]:
        return [worker for worker, its in self._live.items() if its is pool and worker not in request.excluded]

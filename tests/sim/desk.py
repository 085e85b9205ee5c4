"""A desk over the RouterState, as the Scheduler's process has one, that notes what it hears."""

import asyncio

import msgspec

from cluster.types import (
    KvEvents,
    Path,
    Placement,
    PlacementRequest,
    Rejection,
    ReportReply,
    RequestClosed,
    RequestId,
    SchedulerEvent,
    WorkerReport,
)
from router.state import RouterState


class NotingDesk:
    def __init__(self, path: Path | None = None, max_open: int = 1_000_000) -> None:
        """`path`: forced on every request. `max_open`: more than so many requests at a time are refused."""
        self.state = RouterState()
        self.told: list[SchedulerEvent] = []
        self.reports: list[WorkerReport] = []
        self.events: list[KvEvents] = []
        self.wants_snapshot = False
        self.open: set[RequestId] = set()
        self._path, self._max_open = path, max_open
        self._loop = asyncio.get_running_loop()

    async def place(self, request: PlacementRequest, asker: object = None) -> Placement | Rejection:
        if len(self.open) >= self._max_open:
            return Rejection(retry_after_s=2.0, why="full")
        self.open.add(request.request_id)
        if self._path is not None:
            request = msgspec.structs.replace(request, path=self._path)
        return self.state.place(request, self._loop.time(), asker)

    def tell(self, event: SchedulerEvent) -> None:
        self.told.append(event)
        if isinstance(event, RequestClosed):
            self.open.discard(event.request_id)
        self.state.handle(event, self._loop.time())

    def report(self, report: WorkerReport) -> ReportReply:
        self.reports.append(report)
        self.state.handle(report, self._loop.time())
        wants, self.wants_snapshot = self.wants_snapshot, False
        return ReportReply(prefill_workers=frozenset(), wants_kv_snapshot=wants)

    def kv_events(self, events: KvEvents) -> bool:
        self.events.append(events)
        return False

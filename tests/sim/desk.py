"""A desk over the RouterState, as the Scheduler's process has one, and what tests like to see of it."""

import asyncio

from cluster.types import (
    KvEvents,
    Placement,
    PlacementRequest,
    Rejection,
    ReportReply,
    SchedulerEvent,
    WorkerReport,
)
from router.state import RouterState


class TestDesk:
    __test__ = False

    def __init__(self) -> None:
        self.state = RouterState()
        self.told: list[SchedulerEvent] = []
        self.reports: list[WorkerReport] = []
        self.events: list[KvEvents] = []
        self._loop = asyncio.get_running_loop()

    async def place(self, request: PlacementRequest, asker: object = None) -> Placement | Rejection:
        return self.state.place(request, self._loop.time(), asker)

    def tell(self, event: SchedulerEvent) -> None:
        self.told.append(event)
        self.state.handle(event, self._loop.time())

    def report(self, report: WorkerReport) -> ReportReply:
        self.reports.append(report)
        self.state.handle(report, self._loop.time())
        return ReportReply(prefill_workers=frozenset())

    def kv_events(self, events: KvEvents) -> bool:
        self.events.append(events)
        return False

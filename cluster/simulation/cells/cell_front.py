"""CellFront: an ingress before several cells. It chooses a cell for each request, as an ingress of production does
(router/session/cell_port.py). No Scheduler of a run goes away, and no cell drains, so what an ingress does then is left
out.
"""

import asyncio
from collections.abc import Mapping
from functools import reduce

import msgspec

from cluster.messages.ids import CellName, RequestId
from cluster.messages.placement import Placement, PlacementRequest, Rejection
from cluster.messages.scheduler_events import (
    EngineLostWith,
    FirstToken,
    HandoffChecked,
    PrefillDone,
    RequestClosed,
    SchedulerEvent,
    WorkerLost,
)
from cluster.simulation.cells.cell_workers import cell_of_worker
from cluster.simulation.pools.reporter import SchedulerUnderTest
from router.cells.cell_chooser import CellChooser
from router.session.cell_port import MOST_ASKED, better
from router.session.fallback_placement import RETRY_AFTER_S


class CellFront:
    """One ingress, with a chooser of its own. What a session tells goes to the Scheduler that it concerns."""

    def __init__(self, schedulers: Mapping[CellName, SchedulerUnderTest], chooser: CellChooser) -> None:
        self._schedulers = schedulers
        self._chooser = chooser
        self._loop = asyncio.get_running_loop()
        self.num_placed = 0
        """Placements."""
        self.num_moved = 0
        """Placements in another cell than the one that was asked first."""

    async def place(self, request: PlacementRequest) -> Placement | Rejection:
        """Ask one cell after another. If all refuse, returns a refusal for the load rather than for want of workers,
        and of several the one with the shortest Retry-After.
        """
        began_at, rejections = self._loop.time(), list[Rejection]()
        names = self._chooser.order(request)[:MOST_ASKED]
        for name in names:
            self._leave(request.request_id, name)
            self._chooser.placed(request, name)
            age_s = request.age_s + self._loop.time() - began_at
            asked = msgspec.structs.replace(request, age_s=age_s, has_other_cell=name != names[-1])
            answer = await self._schedulers[name].place(asked)
            if isinstance(answer, Placement):
                self.num_placed += 1
                self.num_moved += bool(rejections)
                return answer
            rejections.append(answer)
            if answer.is_quarantined:
                return answer
        if not rejections:
            return Rejection(retry_after_s=RETRY_AFTER_S, why="all cells drain")
        return reduce(better, rejections)

    def tell(self, event: SchedulerEvent) -> None:
        match event:
            case PrefillDone() | FirstToken() | RequestClosed():
                told = [self._chooser.cell_of(event.request_id)]
            case WorkerLost():
                told = [cell_of_worker(event.worker)]
            case HandoffChecked():
                told = [cell_of_worker(event.decode)]
            case EngineLostWith():  # a request that stops engines shall not stop as many in each cell
                told = list(self._schedulers)
        for cell in told:
            if cell is not None:
                self._schedulers[cell].tell(event)
        if isinstance(event, RequestClosed):
            self._chooser.ended(event.request_id)

    def _leave(self, request_id: RequestId, name: CellName) -> None:
        """Withdraw the request from the cell that has it, unless it is this one."""
        before = self._chooser.cell_of(request_id)
        if before is not None and before != name:
            self._schedulers[before].tell(RequestClosed(request_id=request_id))

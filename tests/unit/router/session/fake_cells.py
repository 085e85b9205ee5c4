"""Cells whose Schedulers answer as a test says."""

import asyncio
from collections.abc import Callable

from cluster.clients.known_workers import KnownWorkers
from cluster.clients.scheduler_client import SchedulerClient
from cluster.clients.worker_cells import WorkerCells
from cluster.errors import WorkerUnreachable
from cluster.messages.ids import CellName, Path, RequestId, WorkerId
from cluster.messages.placement import Placement, PlacementRequest, Rejection
from cluster.messages.scheduler_events import RequestClosed, SchedulerEvent
from cluster.messages.views import Readiness, RosterChange
from cluster.rpc.connection import ConnectionLost
from cluster.scheduler_registry import SchedulerRecord
from cluster.slo import SloConfig
from router.cells.cell_chooser import CellChooser
from router.session.cell_board import CellBoard
from router.session.cell_port import CellPort, LeftBecause
from router.session.fallback_placement import FallbackPlacement
from router.session.scheduler_failover import SchedulerFailover
from tests.unit.factories import an_entry

OVERLOAD = Rejection(retry_after_s=7.0, why="full", is_overload=True)
NO_WORKER = Rejection(retry_after_s=5.0, why="no worker")
QUARANTINED = Rejection(retry_after_s=5.0, why="quarantined", is_quarantined=True)


class FakeCell(SchedulerFailover):
    """A cell with one prefill and one decode worker. Its Scheduler places every request, unless `answer` is another."""

    def __init__(self, name: str) -> None:
        self.entries = (an_entry(f"p-{name}"), an_entry(f"d-{name}"))
        self.fallback = FallbackPlacement(SloConfig())
        self.fallback.workers = self.entries
        self.known = KnownWorkers()
        self.known.take(RosterChange(0, 1, list(self.entries), [], num_links=1))
        self.placement = Placement(
            path=Path.PREFILL_DECODE, prefill=WorkerId(f"p-{name}"), decode=WorkerId(f"d-{name}"), why=name
        )
        self.answer: Placement | Rejection = self.placement
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.is_up = True
        self.open: set[RequestId] = set()
        """What a Scheduler would take for the open requests of the ingress."""
        self.asked: list[RequestId] = []
        self.has_other_cell: bool | None = None
        """What the last request said."""
        self.told: list[SchedulerEvent] = []
        self.pauses: dict[RequestId, Callable[[int], None]] = {}
        self.on_change = lambda: None

    @property
    def is_there(self) -> bool:
        return self.is_up

    def set_up(self, is_up: bool) -> None:
        self.is_up = is_up
        self.on_change()

    def set_workers(self, has_workers: bool) -> None:
        self.fallback.workers = self.entries if has_workers else ()
        self.on_change()

    async def place_if_there(self, request: PlacementRequest) -> Placement | Rejection | None:
        self.asked.append(request.request_id)
        self.has_other_cell = request.has_other_cell
        self.open.add(request.request_id)
        await self.may_answer.wait()
        return self.answer if self.is_up else None

    async def place(self, request: PlacementRequest) -> Placement | Rejection:
        """By the ingress itself, unless the Scheduler comes back meanwhile."""
        self.open.add(request.request_id)
        await self.may_answer.wait()
        return self.fallback.place(request)

    def withdraw(self, request: PlacementRequest) -> None:
        self.open.remove(request.request_id)

    def tell(self, event: SchedulerEvent) -> None:
        self.told.append(event)
        if isinstance(event, RequestClosed):
            self.open.discard(event.request_id)

    def when_to_pause(self, request_id: RequestId, pause: Callable[[int], None]) -> None:
        self.pauses[request_id] = pause

    async def readiness(self) -> Readiness:
        if not self.is_up:
            raise WorkerUnreachable("the Scheduler cannot be reached", "scheduler")
        return self.known.readiness

    def close(self) -> None:
        pass


class Stage:
    """An ingress with several cells."""

    def __init__(self, *names: str) -> None:
        self.cells = {CellName(name): FakeCell(name) for name in names}
        self.chooser = CellChooser()
        self.board = CellBoard(self.cells, self.chooser)
        self.workers = WorkerCells({name: SchedulerClient(_nowhere) for name in self.cells})
        self.left: list[tuple[str, LeftBecause]] = []
        self.port = CellPort(
            self.cells,
            self.chooser,
            self.board,
            self.workers,
            SloConfig(),
            lambda cell, why: self.left.append((cell, why)),
        )

    def __getitem__(self, name: str) -> FakeCell:
        return self.cells[CellName(name)]

    def drain(self, *names: str) -> None:
        self.board.drain(frozenset(CellName(name) for name in names))


async def _nowhere() -> SchedulerRecord:
    raise ConnectionLost("there is no Scheduler")

"""CellPort: the Schedulers of several cells, for the sessions of an ingress.

1. A request is asked of one cell at a time, in the order of the CellChooser (router/cells/cell_chooser.py). The next
   cell is asked if the Scheduler of the one before is away, has lost its workers, or refuses the request for the load
   or because no worker can take it. Only the last cell lets a request wait for a worker while none lives. A request in
   quarantine is refused for good.
2. A request counts in the cell that was asked last, until it is closed. What a session tells of the request goes
   there. A cell that a request leaves hears that the request has ended.
3. If no cell takes requests, the ingress places by itself in a cell whose Scheduler is away
   (router/session/scheduler_failover.py), until that cell loses its workers or its Scheduler goes away again. If there
   is none, the request waits for a cell, for as long as its class waits for a worker.
4. A cell that drains keeps the requests that it has. One that is placed anew goes elsewhere if it can. Other requests
   come to a draining cell as a last resort: no open cell has a Scheduler and a worker that can take them. A refusal for
   the load is final for them.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum

from msgspec.structs import replace

from cluster.clients.worker_cells import WorkerCells
from cluster.messages.ids import CellName, RequestId
from cluster.messages.placement import Pinned, Placement, PlacementRequest, Rejection
from cluster.messages.scheduler_events import (
    EngineLostWith,
    FirstToken,
    HandoffChecked,
    PrefillDone,
    RequestClosed,
    SchedulerEvent,
    WorkerLost,
)
from cluster.slo import SloConfig
from router.cells.cell_chooser import CellChooser
from router.session.cell_board import CellBoard
from router.session.fallback_placement import RETRY_AFTER_S
from router.session.scheduler_failover import SchedulerFailover

MOST_ASKED = 3
"""Most cells that are asked for one placement. More makes a request wait in more queues one after another; fewer
refuses requests that another cell would take.
"""
MAX_LOST = 1024
"""Most digests of requests that an engine was lost with and that have not run to their end since. More takes more
memory; fewer keeps a request that proved harmless suspect in the cells where it did not run.
"""

Answer = Placement | Rejection


class LeftBecause(StrEnum):
    """Why a request left a cell."""

    AWAY = "away"
    """The Scheduler is away, or has lost its workers."""
    OVERLOAD = "overload"
    NO_WORKER = "no_worker"
    DRAINING = "draining"


class CellPort:
    """A `SchedulerPort` (router/session/ports.py)."""

    def __init__(
        self,
        cells: Mapping[CellName, SchedulerFailover],
        chooser: CellChooser,
        board: CellBoard,
        workers: WorkerCells,
        slo: SloConfig,
        on_left: Callable[[CellName, LeftBecause], None] = lambda cell, why: None,
    ) -> None:
        """`on_left` is called when a request leaves a cell for another one."""
        self._cells = cells
        self._chooser = chooser
        self._workers = workers
        self._slo = slo
        self._on_left = on_left
        self._open: Counter[CellName] = Counter(dict.fromkeys(cells, 0))
        self._to_pause: dict[RequestId, Callable[[int], None]] = {}
        self._asking: dict[CellName, set[asyncio.Future[Answer | None]]] = {name: set() for name in cells}
        self._lost_with: dict[bytes, None] = {}
        """Digests of requests that an engine was lost with."""
        self._board = board
        board.on_unable = self._give_up_on

    @property
    def num_open(self) -> Mapping[CellName, int]:
        """Requests of this ingress in each cell."""
        return self._open

    async def place(self, request: PlacementRequest) -> Answer:
        until = _now() + self._slo.of(request.slo_class).outage_wait_s
        while True:
            if (answer := await self._ask_in_turn(request)) is not None:
                return answer
            if (alone := self._board.without_scheduler(self._open)) is not None:
                self._enter(alone, request, self._why_left(request))
                if (answer := await self._watched(alone, self._cells[alone].place(request))) is not None:
                    return self._answered(alone, answer)
            elif _now() >= until or not await self._board.some_can_place(until):
                states = ", ".join(f"{name} is {state}" for name, state in self._board.states().items())
                return Rejection(retry_after_s=RETRY_AFTER_S, why=f"no cell takes requests: {states}")

    def when_to_pause(self, request_id: RequestId, pause: Callable[[int], None]) -> None:
        self._to_pause[request_id] = pause

    def tell(self, event: SchedulerEvent) -> None:
        match event:
            case PrefillDone() | FirstToken():
                self._tell(self._chooser.cell_of(event.request_id), event)
            case RequestClosed():
                self._on_closed(event)
            case WorkerLost():
                self._tell(self._workers.cell_of(event.worker), event)
            case HandoffChecked():
                self._tell(self._workers.cell_of(event.decode), event)
            case EngineLostWith():
                self._on_engine_lost(event)

    async def _ask_in_turn(self, request: PlacementRequest) -> Answer | None:
        """The first placement, or the best refusal. None if no cell answers."""
        refusal, why = None, self._why_left(request)
        own, names = self._chooser.cell_of(request.request_id), self._candidates(request)
        for name in names:
            if refusal is not None and refusal.is_overload and self._board.drains(name) and name != own:
                continue
            self._enter(name, request, why)
            asked = replace(request, has_other_cell=name != names[-1])
            answer = await self._watched(name, self._cells[name].place_if_there(asked))
            if isinstance(answer, Placement) or (answer is not None and answer.is_quarantined):
                return self._answered(name, answer)
            if answer is not None:
                refusal = answer if refusal is None else better(refusal, answer)
            why = _why(answer)
        return refusal

    def _answered(self, name: CellName, answer: Answer) -> Answer:
        if isinstance(answer, Placement):
            self._workers.placed(answer, name)
        return answer

    def _candidates(self, request: PlacementRequest) -> list[CellName]:
        """Open cells, and then those that drain."""
        own = self._chooser.cell_of(request.request_id)
        if request.pinned is not None:
            return self._cells_of(request.pinned)
        draining = sorted(self._board.last_resorts(self._open), key=lambda name: name != own)
        return [*self._chooser.order(request)[:MOST_ASKED], *draining[:MOST_ASKED]]

    def _cells_of(self, pinned: Pinned) -> list[CellName]:
        """The cell of these workers. All cells if it is not known: those of other workers refuse."""
        worker = pinned.decode or pinned.prefill
        known = None if worker is None else self._workers.cell_of(worker)
        return list(self._cells) if known is None else [known]

    async def _watched(self, name: CellName, answer: Awaitable[Answer | None]) -> Answer | None:
        """The answer of a cell. None if its Scheduler goes away, or if it loses its workers while the request waits."""
        asking = asyncio.ensure_future(answer)
        self._asking[name].add(asking)
        try:
            await asyncio.wait([asking])
        finally:
            self._asking[name].discard(asking)
            asking.cancel()
        return None if asking.cancelled() else asking.result()

    def _give_up_on(self, name: CellName) -> None:
        """Ask all cells anew for the requests that wait in a cell which cannot place them."""
        for asking in self._asking[name]:
            asking.cancel()

    def _enter(self, name: CellName, request: PlacementRequest, why: LeftBecause) -> None:
        """The request is asked of a cell from now on. `why`: it leaves the cell before."""
        before = self._chooser.cell_of(request.request_id)
        if before == name:
            return
        if before is not None:
            self._cells[before].withdraw(request)
            self._open[before] -= 1
            self._on_left(before, why)
        self._chooser.placed(request, name)
        self._open[name] += 1
        if (pause := self._to_pause.get(request.request_id)) is not None:
            self._cells[name].when_to_pause(request.request_id, pause)

    def _on_closed(self, event: RequestClosed) -> None:
        name = self._chooser.cell_of(event.request_id)
        self._tell(name, event)
        self._chooser.ended(event.request_id)
        self._to_pause.pop(event.request_id, None)
        if name is not None:
            self._open[name] -= 1
        if event.is_harmless and event.digest in self._lost_with:
            del self._lost_with[event.digest]
            for other in self._cells.keys() - {name}:
                self._tell(other, event)

    def _on_engine_lost(self, event: EngineLostWith) -> None:
        """Tell all cells: a request that stops engines shall not stop as many in each cell."""
        self._lost_with[event.digest] = None
        while len(self._lost_with) > MAX_LOST:
            del self._lost_with[next(iter(self._lost_with))]
        for name in self._cells:
            self._tell(name, event)

    def _tell(self, name: CellName | None, event: SchedulerEvent) -> None:
        if name is not None:
            self._cells[name].tell(event)

    def _why_left(self, request: PlacementRequest) -> LeftBecause:
        """Why a request that is placed anew leaves its cell, if it does not stay."""
        own = self._chooser.cell_of(request.request_id)
        return LeftBecause.DRAINING if own is not None and self._board.drains(own) else LeftBecause.AWAY


def better(one: Rejection, other: Rejection) -> Rejection:
    """The refusal that the client gets: for the load rather than for want of workers, and the one that ends first."""
    return min(one, other, key=lambda refusal: (not refusal.is_overload, refusal.retry_after_s))


def _why(answer: Rejection | None) -> LeftBecause:
    if answer is None:
        return LeftBecause.AWAY
    return LeftBecause.OVERLOAD if answer.is_overload else LeftBecause.NO_WORKER


def _now() -> float:
    return asyncio.get_running_loop().time()

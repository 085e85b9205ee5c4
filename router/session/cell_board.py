"""CellBoard: which of its cells an ingress can use: their Schedulers and workers, and what an operator has said."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress

from cluster.messages.ids import CellName
from cluster.messages.views import CellState, Readiness
from router.cells.cell_chooser import CellChooser
from router.session.scheduler_failover import SchedulerFailover


class CellBoard:
    def __init__(
        self, cells: Mapping[CellName, SchedulerFailover], chooser: CellChooser, capacity: int | None = None
    ) -> None:
        """`chooser` is kept up to date. `capacity`: workers that each cell counts as, whatever it has, because its
        workers follow what it gets. Otherwise a cell that has shrunk would stay small. None for cells whose pools do
        not size themselves.
        """
        self._capacity = capacity
        self._cells = cells
        self._chooser = chooser
        self._draining: frozenset[CellName] = frozenset()
        self._some_can_place = asyncio.Event()
        """Some cell can place requests, even if it drains."""
        self.on_unable: Callable[[CellName], None] = lambda name: None
        """Called when a cell cannot place requests any more."""
        for name, cell in cells.items():
            cell.on_change = self._changes(name)
            cell.on_change()

    def drain(self, cells: frozenset[CellName]) -> None:
        """These cells take no new requests from now on, unless no other one can. All others take them."""
        self._draining = cells
        for name in self._cells:
            self._changed(name)

    def drains(self, name: CellName) -> bool:
        return name in self._draining

    def can_place(self, name: CellName) -> bool:
        """Whether the Scheduler of a cell is there and knows a worker."""
        cell = self._cells[name]
        return cell.is_there and len(cell.fallback.workers) > 0

    def states(self) -> dict[CellName, CellState]:
        return {name: self._state_of(name) for name in self._cells}

    async def readiness(self) -> Readiness:
        """Whether some cell can serve, as the Schedulers see it now. Raises ServingError: none answers."""
        there = [cell for cell in self._cells.values() if cell.is_there] or list(self._cells.values())
        answers = await asyncio.gather(*(cell.readiness() for cell in there), return_exceptions=True)
        known = [answer for answer in answers if isinstance(answer, Readiness)]
        if not known:
            raise next(answer for answer in answers if isinstance(answer, BaseException))
        return Readiness(
            num_prefill=sum(cell.num_prefill for cell in known),
            num_decode=sum(cell.num_decode for cell in known),
            num_links=sum(cell.num_links for cell in known),
            mismatch=next((cell.mismatch for cell in known if cell.mismatch is not None), None),
            cells=self.states(),
            may_lack=known[0].may_lack,
        )

    def without_scheduler(self, num_open: Mapping[CellName, int]) -> CellName | None:
        """The least crowded cell among those whose Schedulers are away and whose workers are known. None if there is
        none. `num_open`: the open requests in each cell.
        """
        alone = [name for name, cell in self._cells.items() if not cell.is_there and len(cell.fallback.workers)]
        alone = [name for name in alone if name not in self._draining] or alone
        return min(alone, key=lambda name: self._crowding(name, num_open), default=None)

    def last_resorts(self, num_open: Mapping[CellName, int]) -> list[CellName]:
        """The cells that drain and can place, the least crowded one first. `num_open`: the open requests in each."""
        draining = [name for name in self._cells if name in self._draining and self.can_place(name)]
        return sorted(draining, key=lambda name: self._crowding(name, num_open))

    async def some_can_place(self, until: float) -> bool:
        """Wait until some cell can place requests, even if it drains. Returns False if none can in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._some_can_place.wait()
        return self._some_can_place.is_set()

    def _crowding(self, name: CellName, num_open: Mapping[CellName, int]) -> float:
        return num_open[name] / len(self._cells[name].fallback.workers)

    def _changes(self, name: CellName) -> Callable[[], None]:
        return lambda: self._changed(name)

    def _changed(self, name: CellName) -> None:
        """A cell's Scheduler or its workers have come or gone, or the cell drains or not."""
        capacity = self._capacity or max(len(self._cells[name].fallback.workers), 1)
        self._chooser.set_cell(name, capacity=capacity, is_open=self._takes_new(name))
        if any(self.can_place(cell) for cell in self._cells):
            self._some_can_place.set()
        else:
            self._some_can_place.clear()
        if not self.can_place(name):
            self.on_unable(name)

    def _takes_new(self, name: CellName) -> bool:
        return self.can_place(name) and name not in self._draining

    def _state_of(self, name: CellName) -> CellState:
        cell = self._cells[name]
        if not cell.is_there:
            return CellState.AWAY
        if name in self._draining:
            return CellState.DRAINING
        return CellState.OPEN if cell.known.readiness.is_ready else CellState.NOT_READY

"""CellViews: what the Schedulers of all cells show of themselves, as one view."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from msgspec.structs import replace

from cluster.clients.scheduler_client import SchedulerClient
from cluster.errors import NotFound, ServingError, StateUnavailable, WorkerUnreachable
from cluster.messages.ids import CellName
from cluster.messages.operations import DrainAnswer, DrainAsk, SchedulerStatus
from cluster.messages.views import CellState, CellsView, CellView, ClusterView, QueuedRequest

R = TypeVar("R")
_NOTHING = ClusterView(workers=[])
"""What is known of a cell whose Scheduler does not answer."""


class CellViews:
    """With one cell, the views are those of its Scheduler, without a name of a cell."""

    def __init__(
        self,
        application: str,
        schedulers: Mapping[CellName, SchedulerClient],
        states: Callable[[], Mapping[CellName, CellState]],
    ) -> None:
        self._application = application
        self._schedulers = schedulers
        self._states = states

    async def view(self) -> ClusterView:
        """Raises ServingError if no Scheduler answers."""
        views = await self._of_each(lambda scheduler: scheduler.view())
        if len(self._schedulers) == 1:
            return next(iter(views.values()))
        return ClusterView(
            workers=[replace(worker, cell=cell) for cell, view in views.items() for worker in view.workers],
            num_open=sum(view.num_open for view in views.values()),
            num_waiting=sum(view.num_waiting for view in views.values()),
            cells_away=[cell for cell in self._schedulers if cell not in views],
        )

    async def queue(self) -> list[QueuedRequest]:
        """Cell by cell, each in its order of service. Raises ServingError if no Scheduler answers."""
        queues = await self._of_each(lambda scheduler: scheduler.queue())
        if len(self._schedulers) == 1:
            return next(iter(queues.values()))
        return [replace(request, cell=cell) for cell, queue in queues.items() for request in queue]

    async def statuses(self) -> list[SchedulerStatus]:
        """Of each cell whose Scheduler answers. Raises ServingError if none does."""
        statuses = await self._of_each(lambda scheduler: scheduler.status())
        if len(self._schedulers) == 1:
            return list(statuses.values())
        return [
            replace(status, cell=cell, workers=[replace(worker, cell=cell) for worker in status.workers])
            for cell, status in statuses.items()
        ]

    async def drain(self, ask: DrainAsk) -> DrainAnswer:
        """Raises NotFound if no Scheduler knows the worker, and otherwise as a Scheduler does."""
        unknown = NotFound(f"no worker '{ask.worker}' reports", "worker", "worker_not_found")
        away: ServingError | None = None
        for scheduler in self._schedulers.values():
            try:
                return await scheduler.drain(ask)
            except NotFound as error:
                unknown = error
            except (WorkerUnreachable, StateUnavailable) as error:  # the worker may be of another cell
                away = error
        raise away or unknown

    async def cells(self) -> CellsView:
        """All cells, also those whose Schedulers do not answer."""
        try:
            views = await self._of_each(lambda scheduler: scheduler.view())
        except ServingError:
            views = {}
        states = self._states()
        return CellsView(
            application=self._application,
            cells=[
                _cell(name, states[name] if name in views else CellState.AWAY, views.get(name, _NOTHING))
                for name in self._schedulers
            ],
        )

    async def _of_each(self, ask: Callable[[SchedulerClient], Awaitable[R]]) -> dict[CellName, R]:
        """The answers of the Schedulers that answer. A Scheduler that is known to be away is asked only where all are:
        its answer would take SCHEDULER_TIMEOUT_S.
        """
        there = [name for name, state in self._states().items() if state is not CellState.AWAY]
        names = there or list(self._schedulers)
        answers = await asyncio.gather(*(ask(self._schedulers[name]) for name in names), return_exceptions=True)
        errors = [answer for answer in answers if isinstance(answer, BaseException)]
        serious = [error for error in errors if not isinstance(error, ServingError)]
        if serious or len(errors) == len(names):
            raise [*serious, *errors][0]
        return {
            name: answer for name, answer in zip(names, answers, strict=True) if not isinstance(answer, BaseException)
        }


def _cell(name: CellName, state: CellState, view: ClusterView) -> CellView:
    return CellView(
        name=name,
        state=state,
        num_prefill=view.num_prefill,
        num_decode=view.num_decode,
        num_links=view.num_links,
        num_open=view.num_open,
        num_waiting=view.num_waiting,
    )

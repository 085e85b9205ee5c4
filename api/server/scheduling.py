"""Scheduling: how an ingress replica reaches the Scheduler, or the Schedulers of several cells."""

import asyncio

from api.server.cell_views import CellViews
from cluster.clients.drain_watch import DrainWatch
from cluster.clients.scheduler_client import SchedulerClient
from cluster.clients.worker_cells import WorkerCells
from cluster.clients.worker_client import WorkerConnections
from cluster.config.application import AppConfig
from cluster.messages.ids import CellName, Pool
from cluster.messages.quality import WorkerQuarantine
from cluster.messages.views import Readiness
from cluster.metrics.scaling import set_configured
from cluster.metrics.scheduler import CELL_LEFT, CELL_REQUESTS
from cluster.serve_context import application, cell_states, scheduler_finder
from router.cells.cell_chooser import CellChooser
from router.session.cell_board import CellBoard
from router.session.cell_port import CellPort, LeftBecause
from router.session.fallback_placement import FallbackPlacement
from router.session.ports import SchedulerPort
from router.session.scheduler_failover import SchedulerFailover


class Scheduling:
    def __init__(self, config: AppConfig) -> None:
        names, are_several = config.cells.names, config.cells.are_several
        sizes = {Pool.PREFILL: config.prefill.replicas, Pool.DECODE: config.decode.replicas}
        set_configured(names if are_several else [""], sizes if config.scaling is None else {})
        clients = self._clients = {
            name: SchedulerClient(scheduler_finder(name if are_several else None)) for name in names
        }
        worker_cells = WorkerCells(clients)
        address_book = worker_cells if are_several else clients[names[0]]
        self.workers = WorkerConnections(address_book, config.ingress.max_unread_tokens)
        may_lack = config.scaling.may_be_empty if config.scaling else None
        self._cells = {
            name: SchedulerFailover(
                client, self.workers, FallbackPlacement(config.slo), name if are_several else None, may_lack
            )
            for name, client in clients.items()
        }
        chooser = CellChooser(config.cells.load_bound)
        self._board = CellBoard(self._cells, chooser, config.scaling.most_workers if config.scaling else None)
        self.views = CellViews(application(), clients, self._board.states)
        self._cell_port: CellPort | None = None
        self._drain_watch: DrainWatch | None = None
        if are_several:
            self._cell_port = CellPort(self._cells, chooser, self._board, worker_cells, config.slo, _count)
            states = cell_states()
            self._drain_watch = DrainWatch(lambda: states.draining(names), self._board.drain)
        self.port: SchedulerPort = self._cell_port or self._cells[names[0]]

    async def readiness(self) -> Readiness:
        """Raises ServingError while no Scheduler can be reached."""
        if self._cell_port is None:
            return await next(iter(self._cells.values())).readiness()
        return await self._board.readiness()

    async def quarantine(self, told: WorkerQuarantine) -> None:
        """Tell all Schedulers which workers get no requests. Raises ServingError if one of them is away."""
        answers = await asyncio.gather(
            *(client.quarantine(told) for client in self._clients.values()), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    def export(self) -> None:
        """Set the metrics that show what is known now."""
        if self._cell_port is not None:
            for cell, number in self._cell_port.num_open.items():
                CELL_REQUESTS.labels(cell).set(number)

    def close(self) -> None:
        if self._drain_watch is not None:
            self._drain_watch.close()
        for cell in self._cells.values():
            cell.close()
        for client in self._clients.values():
            client.close()


def _count(cell: CellName, why: LeftBecause) -> None:
    CELL_LEFT.labels(cell, why).inc()

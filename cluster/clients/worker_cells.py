"""WorkerCells: to which cell each worker belongs, as its placements have shown, and so where it listens."""

from collections.abc import Mapping

from cluster.clients.scheduler_client import SchedulerClient
from cluster.messages.ids import Address, CellName, WorkerId
from cluster.messages.placement import Placement

MAX_WORKERS = 1 << 16
"""Most workers that are remembered. Those that had no placement for longest are forgotten beyond it. More takes more
memory, some 200 bytes each; fewer loses what a session tells of a worker on which it has run for very long.
"""


class WorkerCells:
    """An `AddressBook` (cluster/clients/worker_client.py)."""

    def __init__(self, schedulers: Mapping[CellName, SchedulerClient], max_workers: int = MAX_WORKERS) -> None:
        self._schedulers = schedulers
        self._max_workers = max_workers
        self._cell_of: dict[WorkerId, CellName] = {}
        """The worker with the latest placement is the last one."""

    def placed(self, placement: Placement, cell: CellName) -> None:
        """The Scheduler of a cell has chosen workers."""
        for worker in (placement.prefill, placement.decode):
            if worker is not None:
                self._cell_of.pop(worker, None)
                self._cell_of[worker] = cell
        while len(self._cell_of) > self._max_workers:
            del self._cell_of[next(iter(self._cell_of))]

    def cell_of(self, worker: WorkerId) -> CellName | None:
        """None if the worker is not known."""
        return self._cell_of.get(worker)

    async def address_of(self, worker: WorkerId) -> Address | None:
        cell = self._cell_of.get(worker)
        return None if cell is None else await self._schedulers[cell].address_of(worker)

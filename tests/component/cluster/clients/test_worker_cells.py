"""WorkerCells: the cell of each worker, and its address by that cell's Scheduler."""

from cluster.clients.scheduler_client import SchedulerClient
from cluster.clients.worker_cells import WorkerCells
from cluster.messages.ids import Address, CellName, Path, WorkerId
from cluster.messages.placement import Placement
from cluster.rpc.connection import ConnectionLost
from cluster.scheduler_registry import SchedulerRecord
from tests.unit.factories import an_address

A, B = CellName("a"), CellName("b")


class Client(SchedulerClient):
    """Knows every worker, under an address of its own."""

    def __init__(self, host: str) -> None:
        super().__init__(_nowhere)
        self._host = host

    async def address_of(self, worker: WorkerId) -> Address | None:
        return an_address(self._host)


async def _nowhere() -> SchedulerRecord:
    raise ConnectionLost("there is no Scheduler")


def on(prefill: str | None, decode: str | None) -> Placement:
    return Placement(
        path=Path.PREFILL_DECODE,
        prefill=WorkerId(prefill) if prefill else None,
        decode=WorkerId(decode) if decode else None,
        why="a test wants it",
    )


async def test_scheduler_of_the_worker_s_cell_is_asked() -> None:
    cells = WorkerCells({A: Client("host-a"), B: Client("host-b")})
    cells.placed(on("p0", "d0"), A)
    cells.placed(on(None, "d1"), B)
    assert await cells.address_of(WorkerId("p0")) == await cells.address_of(WorkerId("d0")) == an_address("host-a")
    assert await cells.address_of(WorkerId("d1")) == an_address("host-b")
    assert await cells.address_of(WorkerId("unknown")) is None


def test_worker_without_a_placement_for_longest_is_forgotten() -> None:
    cells = WorkerCells({}, max_workers=2)
    for decode in ("d0", "d1", "d0", "d2"):
        cells.placed(on(None, decode), A)
    assert [cells.cell_of(WorkerId(worker)) for worker in ("d0", "d1", "d2")] == ["a", None, "a"]

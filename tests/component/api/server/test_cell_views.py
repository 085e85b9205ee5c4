"""CellViews: the views of several Schedulers as one, also while some do not answer."""

import asyncio

import pytest

from api.server.cell_views import CellViews
from cluster.clients.scheduler_client import SchedulerClient
from cluster.errors import NotFound, ServingError, StateUnavailable, WorkerUnreachable
from cluster.messages.ids import CellName, RequestId, SloClass, WorkerId
from cluster.messages.operations import DrainAnswer, DrainAsk
from cluster.messages.views import CellState, ClusterView, QueuedRequest
from cluster.rpc.connection import ConnectionLost
from cluster.scheduler_registry import SchedulerRecord, SchedulerRegistry
from cluster.worker_drains import WorkerDrains
from router.drain_keeper import DrainKeeper
from router.state import RouterState
from tests.unit.clusters import SLO, a_report
from tests.unit.factories import a_decode_view, a_prefill_view
from tests.unit.memory_store import MemoryStore

A, B = CellName("a"), CellName("b")


class Client(SchedulerClient):
    def __init__(self, name: str, *, answers: bool = True, has_store: bool = True) -> None:
        super().__init__(_nowhere)
        self._name = name
        self._answers = answers
        self.num_asked = 0
        self.state = RouterState(SLO)
        for worker in (f"p-{name}", f"d-{name}", f"d2-{name}"):
            self.state.handle(a_report(worker), asyncio.get_running_loop().time())
        self.store = MemoryStore()
        self.store.is_away = not has_store
        self._drains = DrainKeeper(self.state, WorkerDrains(self.store, 1), SchedulerRegistry(MemoryStore()))

    async def view(self) -> ClusterView:
        self._require()
        workers = [a_prefill_view(f"p-{self._name}"), a_decode_view(f"d-{self._name}", connected=f"p-{self._name}")]
        return ClusterView(workers=workers, num_open=3, num_waiting=1)

    async def queue(self) -> list[QueuedRequest]:
        self._require()
        return [
            QueuedRequest(
                request_id=RequestId(f"r-{self._name}"),
                slo_class=SloClass.STANDARD,
                num_before=0,
                waited_s=0.0,
                wait_s=0.0,
                gives_up_s=0.0,
            )
        ]

    async def drain(self, ask: DrainAsk) -> DrainAnswer:
        self._require()
        return await self._drains.change(ask)

    def _require(self) -> None:
        self.num_asked += 1
        if not self._answers:
            raise WorkerUnreachable("the Scheduler cannot be reached", "scheduler")


async def _nowhere() -> SchedulerRecord:
    raise ConnectionLost("there is no Scheduler")


def views(*clients: Client, **states: CellState) -> CellViews:
    names = [CellName(name) for name in states]
    return CellViews(
        "baton", dict(zip(names, clients, strict=True)), lambda: dict(zip(names, states.values(), strict=True))
    )


async def test_one_view_has_the_workers_and_requests_of_all_cells() -> None:
    all_cells = views(Client("a"), Client("b"), a=CellState.OPEN, b=CellState.DRAINING)
    view = await all_cells.view()
    assert [(worker.worker, worker.cell) for worker in view.workers] == [
        ("p-a", "a"),
        ("d-a", "a"),
        ("p-b", "b"),
        ("d-b", "b"),
    ]
    assert (view.num_open, view.num_waiting, view.cells_away) == (6, 2, [])
    assert [(queued.request_id, queued.cell) for queued in await all_cells.queue()] == [("r-a", "a"), ("r-b", "b")]
    assert [(cell.name, cell.state, cell.num_links) for cell in (await all_cells.cells()).cells] == [
        ("a", "open", 1),
        ("b", "draining", 1),
    ]


async def test_cell_that_does_not_answer_is_named() -> None:
    all_cells = views(Client("a"), Client("b", answers=False), a=CellState.OPEN, b=CellState.OPEN)
    assert (await all_cells.view()).cells_away == ["b"]
    assert [(cell.name, cell.state, cell.num_open) for cell in (await all_cells.cells()).cells] == [
        ("a", "open", 3),
        ("b", "away", 0),
    ]


async def test_cell_that_is_known_to_be_away_is_not_waited_for() -> None:
    away = Client("b")
    assert (await views(Client("a"), away, a=CellState.OPEN, b=CellState.AWAY).view()).cells_away == ["b"]
    assert away.num_asked == 0


async def test_where_no_scheduler_answers_the_cells_are_still_listed() -> None:
    all_cells = views(Client("a", answers=False), Client("b", answers=False), a=CellState.AWAY, b=CellState.AWAY)
    with pytest.raises(ServingError):
        await all_cells.view()
    assert [cell.state for cell in (await all_cells.cells()).cells] == [CellState.AWAY] * 2


async def test_only_cell_has_no_name_in_its_view() -> None:
    only = views(Client("a"), a=CellState.OPEN)
    assert not any(worker.cell for worker in (await only.view()).workers)
    assert not (await only.queue())[0].cell
    assert [cell.name for cell in (await only.cells()).cells] == ["a"]


@pytest.mark.parametrize("first", [{}, {"answers": False}, {"has_store": False}])
async def test_worker_of_any_cell_is_drained_and_that_is_undone(first: dict[str, bool]) -> None:
    b = Client("b")
    both = views(Client("a", **first), b, a=CellState.OPEN, b=CellState.OPEN)
    worker = WorkerId("d-b")
    assert not (await both.drain(DrainAsk(worker=worker, drains=True))).was_draining
    assert b.state.workers.drains.workers == {worker}
    assert (await both.drain(DrainAsk(worker=worker, drains=False))).was_draining
    assert b.state.workers.drains.workers == frozenset()


@pytest.mark.parametrize("drains", [True, False])
async def test_worker_that_no_cell_knows_is_not_found_unless_a_cell_cannot_tell(*, drains: bool) -> None:
    ask = DrainAsk(worker=WorkerId("x"), drains=drains)
    states = {"a": CellState.OPEN, "b": CellState.OPEN}
    with pytest.raises(NotFound):
        await views(Client("a"), Client("b"), **states).drain(ask)
    with pytest.raises(StateUnavailable):
        await views(Client("a", has_store=False), Client("b"), **states).drain(ask)

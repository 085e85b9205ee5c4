"""CellFront: which Scheduler is asked, and which one is told."""

from collections.abc import Callable, Coroutine

from cluster.messages.ids import CellName, Path, RequestId, WorkerId
from cluster.messages.kv_events import KvEvents
from cluster.messages.placement import Placement, PlacementRequest, Rejection
from cluster.messages.reports import ReportReply, WorkerReport
from cluster.messages.scheduler_events import EngineLostWith, FirstToken, RequestClosed, SchedulerEvent, WorkerLost
from cluster.simulation.cells.cell_front import CellFront
from cluster.simulation.clock import VirtualLoop
from router.cells.cell_chooser import CellChooser
from router.session.cell_port import MOST_ASKED

REQUEST = PlacementRequest(request_id=RequestId("r"), num_prompt_tokens=100, block_hashes=[b"a"])
CELLS = [CellName(f"c{number}") for number in range(5)]


class AnsweringScheduler:
    """Answers every request alike, and records what it hears."""

    def __init__(self, name: CellName) -> None:
        self.answer: Placement | Rejection = Placement(
            path=Path.DECODE, prefill=None, decode=WorkerId(f"{name}/d0"), why="it has room"
        )
        self.asked: list[PlacementRequest] = []
        self.told: list[SchedulerEvent] = []

    async def place(self, request: PlacementRequest, _: object = None) -> Placement | Rejection:
        self.asked.append(request)
        return self.answer

    def tell(self, event: SchedulerEvent) -> None:
        self.told.append(event)

    def report(self, report: WorkerReport) -> ReportReply:
        return ReportReply()

    def kv_events(self, events: KvEvents) -> bool:
        return False


class Fronted:
    """Five cells with a front, and the order in which the front asks them for REQUEST."""

    def __init__(self) -> None:
        self.schedulers = {name: AnsweringScheduler(name) for name in CELLS}
        self.chooser = CellChooser()
        for name in CELLS:
            self.chooser.set_cell(name, capacity=2, is_open=True)
        self.order = self.chooser.order(REQUEST)
        self.front = CellFront(self.schedulers, self.chooser)

    def refuse(self, *names: CellName, retry_after_s: float = 5.0, is_quarantined: bool = False) -> None:
        for name in names:
            self.schedulers[name].answer = Rejection(
                retry_after_s=retry_after_s, why="full", is_overload=True, is_quarantined=is_quarantined
            )

    @property
    def asked(self) -> list[CellName]:
        return [name for name in self.order if self.schedulers[name].asked]


def on_virtual_loop(test: Callable[[Fronted], Coroutine[None, None, None]]) -> Callable[[], None]:
    async def run() -> None:
        await test(Fronted())

    def in_loop() -> None:
        VirtualLoop().run(run())

    return in_loop


@on_virtual_loop
async def test_first_cell_is_asked_alone_where_it_has_room(cells: Fronted) -> None:
    answer = await cells.front.place(REQUEST)
    assert isinstance(answer, Placement)
    assert cells.asked == cells.order[:1]
    assert (cells.front.num_placed, cells.front.num_moved) == (1, 0)


@on_virtual_loop
async def test_refused_request_goes_to_the_next_cell(cells: Fronted) -> None:
    cells.refuse(cells.order[0])
    answer = await cells.front.place(REQUEST)
    assert isinstance(answer, Placement)
    assert answer.decode == f"{cells.order[1]}/d0"
    assert cells.front.num_moved == 1
    assert cells.chooser.cell_of(REQUEST.request_id) == cells.order[1]


@on_virtual_loop
async def test_no_more_than_some_cells_are_asked_and_the_shortest_wait_is_told(cells: Fronted) -> None:
    cells.refuse(*CELLS)
    cells.refuse(cells.order[1], retry_after_s=2.0)
    answer = await cells.front.place(REQUEST)
    assert isinstance(answer, Rejection)
    assert answer.retry_after_s == 2.0
    assert cells.asked == cells.order[:MOST_ASKED]


@on_virtual_loop
async def test_only_the_last_cell_lets_a_request_wait_for_a_worker(cells: Fronted) -> None:
    cells.refuse(*CELLS)
    await cells.front.place(REQUEST)
    asked = [request for name in cells.asked for request in cells.schedulers[name].asked]
    assert [request.has_other_cell for request in asked] == [True] * (MOST_ASKED - 1) + [False]


@on_virtual_loop
async def test_quarantine_of_one_cell_is_final(cells: Fronted) -> None:
    cells.refuse(cells.order[0], is_quarantined=True)
    answer = await cells.front.place(REQUEST)
    assert isinstance(answer, Rejection)
    assert cells.asked == cells.order[:1]


@on_virtual_loop
async def test_event_goes_to_the_cell_of_its_request_or_its_worker_and_a_lost_engine_to_all(cells: Fronted) -> None:
    await cells.front.place(REQUEST)
    cells.front.tell(FirstToken(request_id=REQUEST.request_id))
    cells.front.tell(WorkerLost(worker=WorkerId("c3/d1")))
    cells.front.tell(EngineLostWith(digest=b"x", worker=WorkerId("c4/p0"), num_engines_lost=1))
    cells.front.tell(RequestClosed(request_id=REQUEST.request_id))
    cells.front.tell(RequestClosed(request_id=REQUEST.request_id))
    told = {name: [type(event) for event in cells.schedulers[name].told] for name in CELLS}
    home = told.pop(cells.order[0])
    assert [event for event in home if event is not WorkerLost] == [FirstToken, EngineLostWith, RequestClosed]
    assert all(EngineLostWith in events for events in told.values())
    assert [WorkerLost in {**told, cells.order[0]: home}[name] for name in CELLS] == [name == "c3" for name in CELLS]
    cells.chooser.validate()
    assert cells.chooser.cell_of(REQUEST.request_id) is None


@on_virtual_loop
async def test_request_that_leaves_its_cell_is_withdrawn_there(cells: Fronted) -> None:
    """The cell drains, and a worker of the request has died."""
    await cells.front.place(REQUEST)
    home, other, *_ = cells.order
    cells.chooser.set_cell(home, capacity=2, is_open=False)
    answer = await cells.front.place(REQUEST)
    assert isinstance(answer, Placement)
    assert answer.decode == f"{other}/d0"
    assert cells.schedulers[home].told == [RequestClosed(request_id=REQUEST.request_id)]


@on_virtual_loop
async def test_without_an_open_cell_the_request_is_refused(cells: Fronted) -> None:
    for name in CELLS:
        cells.chooser.set_cell(name, capacity=2, is_open=False)
    answer = await cells.front.place(REQUEST)
    assert isinstance(answer, Rejection)
    assert not answer.is_overload

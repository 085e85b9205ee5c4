"""CellPort: which cell is asked for a request, and which cell hears of it."""

import asyncio
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.config.cells import CellsConfig
from cluster.messages.ids import Path, RequestId, WorkerId
from cluster.messages.placement import Pinned, Placement, PlacementRequest, Rejection
from cluster.messages.scheduler_events import (
    EngineLostWith,
    FirstToken,
    HandoffChecked,
    HandoffVerdict,
    PrefillDone,
    RequestClosed,
    WorkerLost,
)
from cluster.messages.views import CellState, RosterChange
from cluster.slo import SloConfig
from router.cells.cell_chooser import LOAD_BOUND
from router.session.cell_port import LeftBecause
from tests.unit.factories import a_placement_request
from tests.unit.router.session.fake_cells import NO_WORKER, OVERLOAD, QUARANTINED, FakeCell, Stage

R = RequestId("r")


def a_request(request_id: str = "r", blocks: str = "one", **fields: object) -> PlacementRequest:
    hashes = [f"{blocks}-{number}".encode() for number in range(4)]
    return a_placement_request(request_id, block_hashes=hashes, **fields)


def preferred(stage: Stage, request: PlacementRequest) -> tuple[str, str]:
    """The cell that the request prefers, and the next one."""
    first, second, *_ = stage.chooser.order(request)
    return first, second


def by(answer: Placement | Rejection) -> str:
    """The cell that has placed the request, or what a refusal says."""
    return answer.why


async def rounds() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_same_prefix_goes_to_the_same_cell() -> None:
    stage = Stage("a", "b", "c")
    cells: dict[str, str] = {}
    for number in range(40):
        blocks = f"prompt {number % 8}"
        answer = by(await stage.port.place(a_request(f"r{number}", blocks)))
        assert cells.setdefault(blocks, answer) == answer
        stage.port.tell(RequestClosed(request_id=RequestId(f"r{number}")))
    assert len(set(cells.values())) > 1


@pytest.mark.parametrize(("refusal", "why"), [(OVERLOAD, LeftBecause.OVERLOAD), (NO_WORKER, LeftBecause.NO_WORKER)])
async def test_refused_request_goes_to_the_next_cell(refusal: Rejection, why: LeftBecause) -> None:
    stage = Stage("a", "b", "c")
    first, second = preferred(stage, a_request())
    stage[first].answer = refusal
    assert by(await stage.port.place(a_request())) == second
    assert (stage[first].open, stage[second].open) == (set(), {R})
    assert stage.left == [(first, why)]


async def test_only_the_last_cell_lets_a_request_wait_for_a_worker() -> None:
    stage = Stage("a", "b")
    first, second = preferred(stage, a_request())
    stage[first].answer = NO_WORKER
    await stage.port.place(a_request())
    assert (stage[first].has_other_cell, stage[second].has_other_cell) == (True, False)
    stage[first].set_up(False)
    await stage.port.place(a_request("r2"))
    assert stage[second].has_other_cell is False


async def test_prompt_that_all_cells_refuse_keeps_its_cell() -> None:
    """The cell has its KV blocks, and those that refuse it have not."""
    stage = Stage("a", "b", "c")
    first, _ = preferred(stage, a_request())
    await stage.port.place(a_request())
    stage.port.tell(RequestClosed(request_id=R))
    for cell in stage.cells.values():
        cell.answer = OVERLOAD
    for number in range(5):
        assert await stage.port.place(a_request(f"r{number}")) == OVERLOAD
        stage.port.tell(RequestClosed(request_id=RequestId(f"r{number}")))
    assert preferred(stage, a_request())[0] == first


def test_config_has_the_bound_of_the_chooser() -> None:
    assert CellsConfig().load_bound == LOAD_BOUND


async def test_quarantine_is_final() -> None:
    stage = Stage("a", "b")
    first, second = preferred(stage, a_request())
    stage[first].answer = QUARANTINED
    assert await stage.port.place(a_request()) == QUARANTINED
    assert stage[second].asked == []


async def test_where_all_refuse_the_client_hears_of_the_load() -> None:
    stage = Stage("a", "b", "c", "d")
    for cell in stage.cells.values():
        cell.answer = NO_WORKER
    stage[preferred(stage, a_request())[1]].answer = OVERLOAD
    assert await stage.port.place(a_request()) == OVERLOAD
    assert sum(len(cell.asked) for cell in stage.cells.values()) == 3


async def test_cell_without_its_scheduler_is_not_asked() -> None:
    stage = Stage("a", "b")
    first, second = preferred(stage, a_request())
    stage[first].set_up(False)
    assert by(await stage.port.place(a_request())) == second
    assert stage[first].asked == []


async def test_waiting_request_leaves_a_cell_that_loses_its_workers() -> None:
    stage = Stage("a", "b")
    first, second = preferred(stage, a_request())
    stage[first].may_answer.clear()
    placing = asyncio.create_task(stage.port.place(a_request()))
    await rounds()
    assert stage[first].open == {R}
    stage[first].set_workers(False)
    assert by(await placing) == second
    assert (stage[first].open, stage[second].open) == (set(), {R})
    assert stage.left == [(first, LeftBecause.AWAY)]


async def test_waiting_request_leaves_a_cell_whose_scheduler_goes_away() -> None:
    stage = Stage("a", "b")
    first, second = preferred(stage, a_request())
    stage[first].may_answer.clear()
    placing = asyncio.create_task(stage.port.place(a_request()))
    await rounds()
    stage[first].set_up(False)
    assert by(await placing) == second


async def test_client_that_leaves_while_its_request_waits_ends_it_in_its_cell() -> None:
    stage = Stage("a", "b")
    first, _ = preferred(stage, a_request())
    stage[first].may_answer.clear()
    placing = asyncio.create_task(stage.port.place(a_request()))
    await rounds()
    placing.cancel()
    await asyncio.wait([placing])
    stage.port.tell(RequestClosed(request_id=R))
    assert stage[first].open == set()
    assert sum(stage.port.num_open.values()) == 0


async def test_later_attempt_stays_in_its_cell() -> None:
    stage = Stage("a", "b")
    first, second = preferred(stage, a_request())
    stage[first].answer = OVERLOAD
    await stage.port.place(a_request())
    stage[first].answer = stage[first].placement
    assert by(await stage.port.place(a_request(attempt=2))) == second


async def test_later_attempt_leaves_a_cell_that_drains() -> None:
    stage = Stage("a", "b")
    first, second = preferred(stage, a_request())
    await stage.port.place(a_request())
    stage.drain(first)
    assert by(await stage.port.place(a_request(attempt=2))) == second
    assert stage.left == [(first, LeftBecause.DRAINING)]


async def test_later_attempt_stays_in_a_cell_that_drains_where_no_other_takes_it() -> None:
    stage = Stage("a", "b")
    first, second = preferred(stage, a_request())
    await stage.port.place(a_request())
    stage.drain(first)
    stage[second].answer = OVERLOAD
    assert by(await stage.port.place(a_request(attempt=2))) == first


async def test_draining_cell_gets_no_new_request_and_gets_them_again_when_it_opens() -> None:
    stage = Stage("a", "b")
    first, second = preferred(stage, a_request())
    stage.drain(first)
    assert by(await stage.port.place(a_request("r1"))) == second
    stage.drain()
    assert by(await stage.port.place(a_request("r1", attempt=2))) == second
    others = [by(await stage.port.place(a_request(f"o{number}", f"other {number}"))) for number in range(20)]
    assert first in others


@pytest.mark.parametrize("what", ["no Scheduler", "no workers", "refuses for want of workers"])
async def test_draining_cell_takes_what_no_other_cell_can(what: str) -> None:
    stage = Stage("a", "b", "c")
    stage.drain("b")
    for cell in (stage["a"], stage["c"]):
        match what:
            case "no Scheduler":
                cell.set_up(False)
            case "no workers":
                cell.set_workers(False)
            case _:
                cell.answer = NO_WORKER
    assert by(await stage.port.place(a_request())) == "b"
    assert stage["b"].has_other_cell is False
    assert not any(cell.has_other_cell is False for cell in (stage["a"], stage["c"]))  # none of them lets it wait


async def test_draining_cell_does_not_take_what_others_refuse_for_the_load() -> None:
    stage = Stage("a", "b", "c")
    stage.drain("b")
    stage["a"].answer, stage["c"].answer = OVERLOAD, NO_WORKER
    assert await stage.port.place(a_request()) == OVERLOAD
    assert stage["b"].asked == []


async def test_waiting_request_comes_to_a_draining_cell_that_gets_a_worker() -> None:
    stage = Stage("a", "b")
    stage.drain("b")
    for cell in stage.cells.values():
        cell.set_workers(False)
    placing = asyncio.create_task(stage.port.place(a_request()))
    await rounds()
    stage["b"].set_workers(True)
    assert by(await placing) == "b"


async def test_least_crowded_draining_cell_comes_first() -> None:
    stage = Stage("a", "b")
    stage.drain("a", "b")
    assert {by(await stage.port.place(a_request(f"r{number}"))) for number in range(2)} == {"a", "b"}


async def test_request_leaves_a_cell_that_fails_again_just_as_its_scheduler_came_back() -> None:
    stage = Stage("a", "b")
    for cell in stage.cells.values():
        cell.set_up(False)
    stage["a"].may_answer.clear()
    stage["b"].set_workers(False)
    placing = asyncio.create_task(stage.port.place(a_request()))
    await rounds()
    assert stage["a"].open == {R}
    stage["a"].set_up(True)  # it has the request in its queue now
    stage["b"].set_workers(True)
    stage["b"].set_up(True)
    stage["a"].set_workers(False)
    assert by(await asyncio.wait_for(placing, 5.0)) == "b"
    assert (stage["a"].open, stage["b"].open) == (set(), {R})


async def test_ingress_places_where_all_schedulers_are_away() -> None:
    stage = Stage("a", "b")
    for cell in stage.cells.values():
        cell.set_up(False)
    answers = [await stage.port.place(a_request(f"r{number}")) for number in range(4)]
    assert all(isinstance(answer, Placement) and "away" in answer.why for answer in answers)
    assert stage.port.num_open == {"a": 2, "b": 2}


async def test_request_waits_for_a_cell_with_workers() -> None:
    stage = Stage("a", "b")
    for cell in stage.cells.values():
        cell.set_workers(False)
    placing = asyncio.create_task(stage.port.place(a_request()))
    await rounds()
    assert not placing.done()
    stage["b"].set_workers(True)
    assert by(await placing) == "b"


async def test_request_that_waits_for_too_long_is_refused_with_the_states_of_all_cells() -> None:
    stage = Stage("a", "b")
    stage["a"].set_workers(False)
    stage["b"].set_workers(False)
    stage.drain("b")
    stage.port._slo = SloConfig(standard=msgspec.structs.replace(SloConfig().standard, outage_wait_s=0.01))
    answer = await stage.port.place(a_request())
    assert isinstance(answer, Rejection)
    assert answer.why == "no cell takes requests: a is open, b is draining"


async def test_pause_of_the_cell_that_has_the_request_reaches_the_session() -> None:
    stage = Stage("a", "b")
    first, second = preferred(stage, a_request())
    stage[first].answer = OVERLOAD
    paused: list[int] = []
    stage.port.when_to_pause(R, paused.append)
    await stage.port.place(a_request())
    stage[second].pauses[R](1)
    assert paused == [1]


async def test_all_cells_hear_of_a_lost_engine_and_of_its_harmless_end() -> None:
    stage = Stage("a", "b", "c")
    await stage.port.place(a_request())
    stage.port.tell(EngineLostWith(digest=b"d", worker=WorkerId("d-a"), num_engines_lost=1))
    closed = RequestClosed(request_id=R, digest=b"d", num_output_tokens=3)
    stage.port.tell(closed)
    stage.port.tell(msgspec.structs.replace(closed, request_id=RequestId("again")))  # it is forgotten by now
    for cell in stage.cells.values():
        assert [type(event) for event in cell.told] == [EngineLostWith, RequestClosed]


async def test_ready_where_one_cell_is_and_says_which_is_not() -> None:
    stage = Stage("a", "b", "c")
    stage["a"].set_up(False)
    stage.drain("b")
    readiness = await stage.board.readiness()
    assert (readiness.is_ready, readiness.num_prefill, readiness.num_links) == (True, 2, 2)
    assert readiness.cells == {"a": CellState.AWAY, "b": CellState.DRAINING, "c": CellState.OPEN}
    stage["c"].set_up(False)
    assert (await stage.board.readiness()).is_ready  # b takes what no other cell can
    stage["b"].set_up(False)
    stage["a"].set_up(True)
    stage["a"].set_workers(False)
    stage["a"].known.take(RosterChange(1, 2, [], [WorkerId("p-a"), WorkerId("d-a")], num_links=0))
    assert not (await stage.board.readiness()).is_ready


Step = tuple[str, int, str]
requests = st.integers(0, 4)
steps = st.one_of(
    st.tuples(st.sampled_from(["place", "prefilled", "first", "lost", "checked", "closed"]), requests, st.just("a")),
    st.tuples(
        st.sampled_from(["up", "down", "workers", "no workers", "drains", "opens", "full", "takes"]),
        st.just(0),
        st.sampled_from("abc"),
    ),
)


class Run:
    """An ingress that obeys steps in any order."""

    def __init__(self) -> None:
        self.stage = Stage("a", "b", "c")
        self.stage.port._slo = SloConfig(standard=msgspec.structs.replace(SloConfig().standard, outage_wait_s=0.0))
        self.draining: set[str] = set()
        self.attempts: Counter[int] = Counter()
        self.placed: dict[int, Placement] = {}
        """The latest placement of each open request."""
        self.charged: set[int] = set()

    def cell_of(self, request: int) -> FakeCell:
        """The cell of the workers that the request was placed on."""
        worker = self.placed[request].generating
        (cell,) = [cell for cell in self.stage.cells.values() if worker in [entry.worker for entry in cell.entries]]
        return cell

    async def take(self, step: Step) -> None:
        what, request, cell = step
        match what:
            case "place":
                await self._place(request)
            case "up" | "down":
                self.stage[cell].set_up(what == "up")
            case "workers" | "no workers":
                self.stage[cell].set_workers(what == "workers")
            case "drains" | "opens":
                self.draining = self.draining | {cell} if what == "drains" else self.draining - {cell}
                self.stage.drain(*self.draining)
            case "full" | "takes":
                self.stage[cell].answer = OVERLOAD if what == "full" else self.stage[cell].placement
            case _ if request in self.placed:
                self._tell(what, request)

    async def _place(self, request: int) -> None:
        self.attempts[request] += 1
        self.charged.add(request)
        answer = await self.stage.port.place(a_request(f"r{request}", str(request), attempt=self.attempts[request]))
        if isinstance(answer, Placement):
            self.placed[request] = answer
        else:
            self.close(request)

    def _tell(self, what: str, request: int) -> None:
        cell, placement, request_id = self.cell_of(request), self.placed[request], RequestId(f"r{request}")
        match what:
            case "prefilled":
                self.stage.port.tell(PrefillDone(request_id=request_id))
            case "first":
                self.stage.port.tell(FirstToken(request_id=request_id))
            case "lost":
                self.stage.port.tell(WorkerLost(worker=placement.generating))
            case "checked" if placement.prefill is not None and placement.decode is not None:
                verdict = HandoffVerdict.AGREES
                self.stage.port.tell(
                    HandoffChecked(prefill=placement.prefill, decode=placement.decode, verdict=verdict, distance=0.0)
                )
            case "closed":
                self.close(request)
            case _:
                return
        others = [other for other in self.stage.cells.values() if other is not cell]
        assert len(cell.told) == 1
        assert not any(other.told for other in others)
        cell.told.clear()

    def close(self, request: int) -> None:
        self.stage.port.tell(RequestClosed(request_id=RequestId(f"r{request}")))
        self.placed.pop(request, None)
        self.charged.discard(request)

    def validate(self) -> None:
        self.stage.chooser.validate()
        open_requests = sorted(request for cell in self.stage.cells.values() for request in cell.open)
        assert open_requests == sorted(f"r{request}" for request in self.charged)
        assert {name: len(cell.open) for name, cell in self.stage.cells.items()} == dict(self.stage.port.num_open)
        for request in self.placed:
            assert f"r{request}" in self.cell_of(request).open


@given(st.lists(steps, max_size=40))
def test_what_is_told_of_a_request_reaches_the_cell_that_placed_it_and_no_other(steps: list[Step]) -> None:
    async def obey() -> None:
        run = Run()
        for step in steps:
            await run.take(step)
            for cell in run.stage.cells.values():
                cell.told.clear()
            run.validate()
        for request in list(run.charged):
            run.close(request)
        run.validate()

    asyncio.run(obey())


async def test_probe_is_asked_of_the_cell_of_its_worker() -> None:
    stage = Stage("a", "b", "c", "d", "e")
    pinned = Pinned(None, WorkerId("d-e"))
    for name in "abcd":
        stage[name].answer = NO_WORKER
    found = await stage.port.place(a_placement_request("first", path=Path.DECODE, pinned=pinned))
    assert found == stage["e"].placement, "all cells are asked while it is not known"
    await stage.port.place(a_placement_request("second", path=Path.DECODE, pinned=pinned))
    assert [name for name in "abcde" if RequestId("second") in stage[name].asked] == ["e"]

"""Placing while the Scheduler comes and goes: real connections, on short times."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest
import pytest_asyncio

from cluster.clients import scheduler_client
from cluster.clients.scheduler_client import SchedulerClient
from cluster.clients.worker_client import WorkerConnections
from cluster.errors import WorkerUnreachable
from cluster.messages.ids import Address, Path, Pool, RequestId, SloClass, WorkerId
from cluster.messages.placement import Placement, PlacementRequest, Rejection
from cluster.messages.scheduler_events import EngineLostWith, OpenRequests, Pause, RequestClosed, SchedulerEvent
from cluster.messages.views import RosterChange, RosterEntry
from cluster.rpc.connection import Connection, ConnectionLost, Service
from cluster.rpc.listener import Listener
from cluster.rpc.protocol import EVENTS, LOCATE, OPEN_REQUESTS, PAUSE, PLACE, ROSTER
from cluster.scheduler_registry import SchedulerRecord
from cluster.slo import SloConfig
from router.session import scheduler_failover as scheduling_module
from router.session.fallback_placement import FallbackPlacement
from router.session.scheduler_failover import SchedulerFailover
from tests.expected import of_kind
from tests.unit.factories import a_scheduler

PATIENCE_S, GRACE_S = 0.2, 0.3
SLO = SloConfig(interactive=msgspec.structs.replace(SloConfig().interactive, outage_wait_s=0.5))
R = RequestId("r")
REQUEST = PlacementRequest(request_id=R, num_prompt_tokens=1)
PLACED = Placement(path=Path.DECODE, prefill=None, decode=WorkerId("d0"), why="by the Scheduler")
D0 = RosterEntry(WorkerId("d0"), Pool.DECODE, 8, Address("127.0.0.1", 1, "70726f63657373"))


class FakeScheduler:
    """Killed and started anew as a test says."""

    def __init__(self) -> None:
        self.workers = [D0]
        self.told: list[SchedulerEvent] = []
        self.told_when_asked: list[SchedulerEvent] = []
        self.listed: list[list[RequestId]] = []
        self.answers, self.answers_looks = asyncio.Event(), asyncio.Event()
        self.answers.set()
        self.answers_looks.set()
        self.asked = asyncio.Event()
        self._listener: Listener | None = None
        self._ingress: Connection | None = None

    async def start(self) -> None:
        service = Service()
        service.on_call(PLACE, self._place)
        service.on_post(EVENTS, lambda _, message: self.told.extend(message.events))
        service.on_post(OPEN_REQUESTS, self._open_requests)
        service.on_call(ROSTER, self._roster)
        service.on_call(LOCATE, self._locate)
        self._listener = await Listener.start("127.0.0.1", service)

    async def kill(self) -> None:
        if self._listener is not None:
            listener, self._listener = self._listener, None
            await listener.close()

    async def find(self) -> SchedulerRecord:
        if self._listener is None:
            raise ConnectionLost("there is no Scheduler")
        return a_scheduler(self._listener.address)

    def pause(self, pause: Pause) -> None:
        assert self._ingress is not None
        self._ingress.post(PAUSE, pause)

    def _open_requests(self, connection: Connection, message: OpenRequests) -> None:
        self._ingress = connection
        self.listed.append(message.requests)

    async def _place(self, request: PlacementRequest) -> Placement | Rejection:
        self.asked.set()
        self.told_when_asked = list(self.told)
        await self.answers.wait()
        return PLACED

    async def _roster(self, since: int) -> RosterChange:
        await self.answers_looks.wait()
        return RosterChange(0, since + 1, self.workers, [], 0)

    async def _locate(self, worker: WorkerId) -> Address | None:
        return Address("127.0.0.1", 1, "70726f63657373")


class Stage:
    def __init__(self) -> None:
        self.scheduler = FakeScheduler()
        peer = SchedulerClient(self.scheduler.find)
        self.scheduling = SchedulerFailover(peer, WorkerConnections(peer), FallbackPlacement(SLO))

    async def settled(self) -> None:
        """The Scheduler has been looked at."""
        await until(self.scheduling._is_back.is_set)

    async def noticed_loss(self) -> None:
        await until(lambda: not self.scheduling._is_back.is_set())


@pytest_asyncio.fixture
async def stage(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setattr(scheduling_module, "PATIENCE_S", PATIENCE_S)
    monkeypatch.setattr(scheduling_module, "GRACE_S", GRACE_S)
    monkeypatch.setattr(scheduling_module, "RETRY_INTERVAL_S", 0.01)
    staged = Stage()
    yield staged
    staged.scheduling.close()
    await staged.scheduler.kill()
    for _ in range(5):
        await asyncio.sleep(0.01)


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(1000):
        if is_so():
            return
        await asyncio.sleep(0.005)
    raise TimeoutError


def by_whom(answer: Placement | Rejection) -> str:
    assert isinstance(answer, Placement)
    return "the Scheduler" if answer == PLACED else "last resort"


async def timed(placing: Awaitable[Placement | Rejection]) -> tuple[str, float]:
    started_at = asyncio.get_running_loop().time()
    answer = await placing
    return by_whom(answer), asyncio.get_running_loop().time() - started_at


async def test_scheduler_that_is_there_decides_however_long_it_takes(stage: Stage) -> None:
    await stage.scheduler.start()
    await stage.settled()
    stage.scheduler.answers.clear()
    placing = asyncio.create_task(stage.scheduling.place(REQUEST))
    await stage.scheduler.asked.wait()
    await asyncio.wait([placing], timeout=2 * PATIENCE_S)
    assert not placing.done()
    stage.scheduler.answers.set()
    assert by_whom(await placing) == "the Scheduler"


async def test_request_is_placed_here_once_the_scheduler_has_been_away_for_a_while(stage: Stage) -> None:
    await stage.scheduler.start()
    await stage.settled()
    await stage.scheduler.kill()
    whom, seconds = await timed(stage.scheduling.place(REQUEST))
    assert (whom, PATIENCE_S / 2 < seconds < 2.0) == ("last resort", True)
    whom, seconds = await timed(stage.scheduling.place(REQUEST))
    assert (whom, seconds < PATIENCE_S / 2) == ("last resort", True)


async def test_request_that_was_being_placed_when_the_scheduler_died_is_placed_here(stage: Stage) -> None:
    await stage.scheduler.start()
    await stage.settled()
    stage.scheduler.answers.clear()
    placing = asyncio.create_task(stage.scheduling.place(REQUEST))
    await stage.scheduler.asked.wait()
    await stage.scheduler.kill()
    assert by_whom(await placing) == "last resort"


async def test_request_waits_for_a_successor_that_comes_soon(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling_module, "PATIENCE_S", 10.0)
    await stage.scheduler.start()
    await stage.settled()
    await stage.scheduler.kill()
    placing = asyncio.create_task(stage.scheduling.place(REQUEST))
    await asyncio.sleep(0.05)
    await stage.scheduler.start()
    whom, seconds = await timed(placing)
    assert (whom, seconds < 5.0) == ("the Scheduler", True)


async def test_successor_decides_when_it_has_heard_from_the_workers(stage: Stage) -> None:
    await stage.scheduler.start()
    await stage.settled()
    await stage.scheduler.kill()
    assert by_whom(await stage.scheduling.place(REQUEST)) == "last resort"
    stage.scheduler.workers = []
    await stage.scheduler.start()
    await until(lambda: stage.scheduling._reached_at is not None)
    assert by_whom(await stage.scheduling.place(REQUEST)) == "last resort"
    stage.scheduler.workers = [D0]
    await stage.settled()
    assert by_whom(await stage.scheduling.place(REQUEST)) == "the Scheduler"


async def test_who_is_told_that_the_successor_is_there_is_placed_by_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.scheduler.start()
    await stage.settled()
    monkeypatch.setattr(scheduling_module, "RETRY_INTERVAL_S", 60.0)
    await stage.scheduler.kill()
    assert by_whom(await stage.scheduling.place(REQUEST)) == "last resort"
    await stage.scheduler.start()
    assert (await stage.scheduling.readiness()).num_decode == 1
    assert by_whom(await stage.scheduling.place(REQUEST)) == "the Scheduler"


async def test_scheduler_that_hears_from_no_worker_for_a_while_is_believed(stage: Stage) -> None:
    stage.scheduler.workers = []
    await stage.scheduler.start()
    await stage.settled()
    assert by_whom(await stage.scheduling.place(REQUEST)) == "the Scheduler"


async def test_workers_that_come_last_are_known_when_the_scheduler_dies(stage: Stage) -> None:
    stage.scheduler.workers = []
    await stage.scheduler.start()
    await stage.settled()
    stage.scheduler.workers = [D0]
    await until(lambda: bool(stage.scheduling.fallback.workers))
    await stage.scheduler.kill()
    assert by_whom(await stage.scheduling.place(REQUEST)) == "last resort"


async def test_workers_are_known_again_as_soon_as_a_successor_knows_them(stage: Stage) -> None:
    await stage.scheduler.start()
    await stage.settled()
    await stage.scheduler.kill()
    stage.scheduler.workers = []
    await stage.scheduler.start()
    assert (await stage.scheduling.readiness()).num_decode == 0  # before anybody was told that the old one is gone
    stage.scheduler.workers = [D0]
    await until(lambda: bool(stage.scheduling.fallback.workers))


async def test_without_any_word_of_the_scheduler_a_request_waits_as_long_as_its_class_may(stage: Stage) -> None:
    refused = await stage.scheduling.place(msgspec.structs.replace(REQUEST, slo_class=SloClass.INTERACTIVE))
    assert isinstance(refused, Rejection)
    assert "away" in refused.why


async def test_request_that_came_before_the_first_scheduler_is_placed_by_it(stage: Stage) -> None:
    placing = asyncio.create_task(stage.scheduling.place(REQUEST))
    await asyncio.wait([placing], timeout=2 * PATIENCE_S)
    assert not placing.done()
    await stage.scheduler.start()
    assert by_whom(await placing) == "the Scheduler"


async def test_request_that_was_lost_with_all_known_workers_is_placed_by_the_successor(stage: Stage) -> None:
    await stage.scheduler.start()
    await stage.settled()
    await stage.scheduler.kill()
    gone = frozenset({D0.worker})
    placing = asyncio.create_task(stage.scheduling.place(msgspec.structs.replace(REQUEST, excluded=gone, lost=gone)))
    await asyncio.wait([placing], timeout=2 * PATIENCE_S)
    assert not placing.done()
    await stage.scheduler.start()
    assert by_whom(await placing) == "the Scheduler"


async def test_request_is_closed_whether_or_not_the_scheduler_hears_it(stage: Stage) -> None:
    await stage.scheduler.start()
    await stage.settled()
    closed = RequestClosed(request_id=R)
    await stage.scheduling.place(REQUEST)
    stage.scheduling.tell(closed)
    await until(lambda: stage.scheduler.told == [closed])
    await stage.scheduler.kill()
    for _ in range(2 * D0.max_requests):
        assert by_whom(await stage.scheduling.place(REQUEST)) == "last resort"
        stage.scheduling.tell(closed)


async def test_scheduler_that_is_slow_is_waited_for(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_client, "SCHEDULER_TIMEOUT_S", 0.05)
    await stage.scheduler.start()
    await stage.settled()
    stage.scheduler.answers_looks.clear()
    for _ in range(3):
        with pytest.raises(WorkerUnreachable):
            await stage.scheduling.readiness()
    stage.scheduling._look_now.set()
    await asyncio.sleep(3 * 0.05)
    assert by_whom(await stage.scheduling.place(REQUEST)) == "the Scheduler"


async def test_successor_is_told_of_no_request_that_it_does_not_know(stage: Stage) -> None:
    await stage.scheduler.start()
    await stage.settled()
    await stage.scheduler.kill()
    await stage.noticed_loss()
    stage.scheduling.tell(RequestClosed(request_id=R))
    await stage.scheduler.start()
    await stage.settled()
    other = RequestClosed(request_id=RequestId("other"))
    stage.scheduling.tell(other)
    await until(lambda: bool(stage.scheduler.told))
    assert stage.scheduler.told == [other]


async def test_open_requests_are_listed_on_a_new_connection_before_anything_else(stage: Stage) -> None:
    await stage.scheduler.start()
    await stage.settled()
    assert stage.scheduler.listed[0] == []
    await stage.scheduling.place(REQUEST)
    await stage.scheduler.kill()
    await stage.noticed_loss()
    await stage.scheduler.start()
    await stage.settled()
    assert stage.scheduler.listed[-1] == [R]


async def test_session_hears_that_its_request_is_to_pause_until_it_has_ended(stage: Stage) -> None:
    await stage.scheduler.start()
    await stage.settled()
    attempts: list[int] = []
    stage.scheduling.when_to_pause(R, attempts.append)
    await stage.scheduling.place(REQUEST)
    stage.scheduler.pause(Pause(RequestId("unknown"), 1))
    stage.scheduler.pause(Pause(R, 1))
    await until(lambda: attempts == [1])
    stage.scheduling.tell(RequestClosed(request_id=R))
    stage.scheduler.pause(Pause(R, 1))
    await stage.scheduling.place(REQUEST)  # its answer is read after the pause
    assert attempts == [1]


async def is_refused_while_the_scheduler_is_away(stage: Stage) -> bool:
    await stage.scheduler.start()
    await stage.settled()
    await stage.scheduler.kill()
    await stage.noticed_loss()
    answer = await stage.scheduling.place(msgspec.structs.replace(REQUEST, digest=b"poison"))
    return isinstance(answer, Rejection) and answer.is_quarantined


def told_of_two_losses(stage: Stage) -> None:
    for number in (1, 2):
        worker = WorkerId(f"d{number}")
        stage.scheduling.tell(EngineLostWith(digest=b"poison", worker=worker, num_engines_lost=number))


async def test_request_in_quarantine_is_refused_while_the_scheduler_is_away(stage: Stage) -> None:
    told_of_two_losses(stage)
    assert await is_refused_while_the_scheduler_is_away(stage)


async def test_request_that_finishes_is_in_quarantine_no_more(stage: Stage) -> None:
    told_of_two_losses(stage)
    stage.scheduling.tell(RequestClosed(request_id=R, digest=b"poison", num_output_tokens=3))
    assert not await is_refused_while_the_scheduler_is_away(stage)


async def test_scheduler_that_is_there_says_who_is_in_quarantine(stage: Stage) -> None:
    """It sees the losses of all ingresses: where many were lost with one engine, it lets them out earlier."""
    await stage.scheduler.start()
    await stage.settled()
    told_of_two_losses(stage)
    assert await stage.scheduling.place(msgspec.structs.replace(REQUEST, digest=b"poison")) == PLACED


async def test_successor_hears_of_losses_before_it_is_asked(stage: Stage) -> None:
    """A Scheduler that has just been replaced would place the request."""
    await stage.scheduler.start()
    await stage.settled()
    told_of_two_losses(stage)
    await stage.scheduler.kill()
    await stage.noticed_loss()
    stage.scheduler.told.clear()
    await stage.scheduler.start()
    await stage.settled()
    await stage.scheduling.place(msgspec.structs.replace(REQUEST, digest=b"poison"))
    assert [of_kind(EngineLostWith, event).num_engines_lost for event in stage.scheduler.told_when_asked] == [2]


async def test_last_resort_knows_how_many_engines_were_lost(stage: Stage) -> None:
    """So that the request asks an engine for a sign of life before it runs on it."""
    await stage.scheduler.start()
    await stage.settled()
    await stage.scheduler.kill()
    await stage.noticed_loss()
    stage.scheduling.tell(EngineLostWith(digest=b"poison", worker=WorkerId("d1"), num_engines_lost=1))
    answer = await stage.scheduling.place(msgspec.structs.replace(REQUEST, digest=b"poison"))
    assert isinstance(answer, Placement) and answer.num_engines_lost == 1


async def test_caller_with_another_scheduler_to_ask_does_not_wait_for_one_that_is_away(stage: Stage) -> None:
    assert await stage.scheduling.place_if_there(REQUEST) is None
    await stage.scheduler.start()
    await stage.settled()
    assert await stage.scheduling.place_if_there(REQUEST) == PLACED
    stage.scheduler.answers.clear()
    placing = asyncio.create_task(stage.scheduling.place_if_there(REQUEST))
    await stage.scheduler.asked.wait()
    await stage.scheduler.kill()
    assert await placing is None


async def test_request_that_another_scheduler_is_asked_for_is_open_here_no_more(stage: Stage) -> None:
    await stage.scheduler.start()
    await stage.settled()
    await stage.scheduling.place_if_there(msgspec.structs.replace(REQUEST, digest=b"d"))
    stage.scheduling.withdraw(msgspec.structs.replace(REQUEST, digest=b"d"))
    await stage.scheduling.place_if_there(REQUEST)  # it comes back, and its end is read first
    assert stage.scheduler.told_when_asked == [RequestClosed(request_id=R, digest=b"d")]


async def test_listener_hears_when_the_scheduler_and_its_workers_come_and_go(stage: Stage) -> None:
    heard: list[tuple[bool, int]] = []
    stage.scheduling.on_change = lambda: heard.append(
        (stage.scheduling.is_there, len(stage.scheduling.fallback.workers))
    )
    await stage.scheduler.start()
    await until(lambda: heard == [(True, 1)])
    stage.scheduler.workers = []
    stage.scheduling._look_now.set()
    await until(lambda: heard[-1] == (True, 0))
    await stage.scheduler.kill()
    await until(lambda: heard[-1] == (False, 0))
    assert len(heard) == 3

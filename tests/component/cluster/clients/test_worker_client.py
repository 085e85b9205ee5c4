"""The session's ports over real connections: finding, losing and finding again the Scheduler and the workers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from cluster.clients import scheduler_client, worker_client
from cluster.clients.scheduler_client import SchedulerClient
from cluster.clients.worker_client import DecodeClient, PrefillClient, WorkerConnections
from cluster.errors import Overloaded, WorkerUnreachable
from cluster.messages.generation import GenerateRequest, TokenDelta
from cluster.messages.ids import Address, Pool, RequestId, WorkerId
from cluster.messages.kv_events import KvChange, KvEvents, KvTier
from cluster.messages.placement import PlacementRequest, Rejection
from cluster.messages.reports import DeltaReply, LinkOrder, ReportDelta, ReportReply, WorkerLoad, WorkerReport
from cluster.messages.retention import ToolWait
from cluster.messages.scheduler_events import WorkerLeft
from cluster.messages.timeline import TimelineStage
from cluster.messages.transport import LinkSpeed
from cluster.rpc.connection import Connection, ConnectionLost, Service
from cluster.rpc.listener import Listener, connect
from cluster.rpc.protocol import ANSWER, AWAIT_TOOLS, KV_EVENTS, LEAVING, LOCATE, PLACE, PREFILL, REPORT
from cluster.scheduler_registry import SchedulerRecord
from kvtransfer.handoff import PrefillResult
from tests.expected import present
from tests.unit.factories import a_scheduler

WORKER = WorkerId("p0")
REQUEST = GenerateRequest(request_id=RequestId("r"), prompt_token_ids=[1], sampling_params=b"")
PLACEMENT = PlacementRequest(request_id=RequestId("r"), num_prompt_tokens=1)


@pytest.fixture(autouse=True)
async def all_closed(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Closes every listener and connection of a test."""
    opened: list[Listener | Connection] = []
    listen = Listener.start

    async def start(host: str, service: Service) -> Listener:
        opened.append(listener := await listen(host, service))
        return listener

    async def connected(address: Address, service: Service) -> Connection:
        opened.append(connection := await connect(address, service))
        return connection

    monkeypatch.setattr(Listener, "start", start)
    for module in (scheduler_client, worker_client):
        monkeypatch.setattr(module, "connect", connected)
    yield
    for one in opened:
        if isinstance(one, Listener):
            await one.close()
        else:
            one.close()
    for _ in range(3):
        await asyncio.sleep(0)


class FakeScheduler:
    def __init__(self) -> None:
        self.addresses: dict[WorkerId, Address] = {}
        self.num_located = 0
        self.left: list[WorkerLeft] = []
        self.kv_events: list[KvEvents] = []
        self.listener: Listener | None = None

    async def start(self) -> "FakeScheduler":
        service = Service()
        service.on_call(PLACE, self._place)
        service.on_call(LEAVING, self._leaving)
        service.on_call(LOCATE, self._locate)
        service.on_call(REPORT, self._report)
        service.on_post(KV_EVENTS, lambda _, events: self.kv_events.append(events))
        self.listener = await Listener.start("127.0.0.1", service)
        return self

    async def find(self) -> SchedulerRecord:
        if self.listener is None:
            raise ConnectionLost("there is no Scheduler")
        return a_scheduler(self.listener.address)

    async def _place(self, request: PlacementRequest) -> Rejection:
        return Rejection(retry_after_s=1.0, why="no worker")

    async def _leaving(self, event: WorkerLeft) -> None:
        self.left.append(event)

    async def _report(self, report: ReportDelta) -> DeltaReply:
        if report.standing is None:
            return DeltaReply(wants_standing=True)
        return DeltaReply(False, link=LinkOrder(WORKER), gone=(WORKER,))

    async def _locate(self, worker: WorkerId) -> Address | None:
        self.num_located += 1
        await asyncio.sleep(0)
        return self.addresses.get(worker)


async def a_prefill_worker(result: PrefillResult | None = None) -> Listener:
    async def prefill(request: GenerateRequest) -> PrefillResult | None:
        return result

    service = Service()
    service.on_call(PREFILL, prefill)
    return await Listener.start("127.0.0.1", service)


async def test_worker_is_found_and_connected_to_once_for_all_who_wait() -> None:
    scheduler, worker = await FakeScheduler().start(), await a_prefill_worker()
    scheduler.addresses[WORKER] = worker.address
    prefill = PrefillClient(WorkerConnections(SchedulerClient(scheduler.find)))
    assert await asyncio.gather(*(prefill.prefill(WORKER, REQUEST) for _ in range(20))) == [None] * 20
    assert scheduler.num_located == 1


async def test_way_to_a_prefill_worker_is_measured_where_the_ingress_can() -> None:
    """The connection, before the first request alone, and how long an answer that is here waits for its session."""
    measured = TokenDelta(0, [1], stages=(TimelineStage("prefill", 0.0, 0.001),))
    scheduler, worker = (
        await FakeScheduler().start(),
        await a_prefill_worker(PrefillResult(handoff=None, first=measured)),
    )
    scheduler.addresses[WORKER] = worker.address
    client = PrefillClient(WorkerConnections(SchedulerClient(scheduler.find)))
    loop, shown = asyncio.get_running_loop(), []
    for _ in range(2):
        began_at = loop.time()
        result = present(await client.prefill(WORKER, REQUEST))
        stages = {stage.name: stage for stage in result.first.stages or ()}
        connect_s = stages["connect"].end_s if "connect" in stages else 0.0
        assert 0.0 <= connect_s <= connect_s + stages["deliver"].start_s <= loop.time() - began_at
        shown.append(list(stages))
    assert shown == [["connect", "prefill", "deliver"], ["prefill", "deliver"]]


async def test_worker_that_nobody_knows_or_that_is_gone_is_unreachable() -> None:
    scheduler, worker = await FakeScheduler().start(), await a_prefill_worker()
    all_peers = WorkerConnections(SchedulerClient(scheduler.find))
    with pytest.raises(WorkerUnreachable, match="not known"):
        await PrefillClient(all_peers).prefill(WORKER, REQUEST)
    scheduler.addresses[WORKER] = worker.address
    assert await PrefillClient(all_peers).prefill(WORKER, REQUEST) is None
    await worker.close()
    for _ in range(2):
        with pytest.raises(WorkerUnreachable) as lost:
            await PrefillClient(all_peers).prefill(WORKER, REQUEST)
        assert lost.value.worker == WORKER
    with pytest.raises(WorkerUnreachable):
        async with aclosing(DecodeClient(all_peers).generate(WORKER, REQUEST, None)) as deltas:
            await anext(deltas)


async def test_worker_whose_known_address_does_not_answer_is_asked_for_anew() -> None:
    scheduler, worker = await FakeScheduler().start(), await a_prefill_worker()
    scheduler.addresses[WORKER] = worker.address
    prefill = PrefillClient(WorkerConnections(SchedulerClient(scheduler.find)))
    await prefill.prefill(WORKER, REQUEST)
    await worker.close()
    scheduler.addresses[WORKER] = (await a_prefill_worker()).address
    await asyncio.sleep(0.05)  # until the end of the connection is noticed
    with pytest.raises(WorkerUnreachable, match="cannot connect"):
        await prefill.prefill(WORKER, REQUEST)
    assert await prefill.prefill(WORKER, REQUEST) is None


async def test_call_waits_for_the_successor_of_a_dead_scheduler() -> None:
    scheduler = await FakeScheduler().start()
    peer = SchedulerClient(scheduler.find)
    assert await peer.address_of(WORKER) is None
    assert scheduler.listener is not None
    await scheduler.listener.close()
    scheduler.listener = None
    asking = asyncio.create_task(peer.address_of(WORKER))
    await asyncio.sleep(0)
    await scheduler.start()
    assert await asking is None


async def test_request_is_placed_by_a_connected_scheduler_alone() -> None:
    scheduler = await FakeScheduler().start()
    peer = SchedulerClient(scheduler.find)
    with pytest.raises(ConnectionLost, match="Scheduler is away"):
        await peer.place(PLACEMENT)
    await peer.address_of(WORKER)
    assert isinstance(await peer.place(PLACEMENT), Rejection)


async def test_worker_that_leaves_says_so_before_what_it_asks_next() -> None:
    scheduler = await FakeScheduler().start()
    peer = SchedulerClient(scheduler.find)
    await peer.say_leaving(WorkerLeft(worker=WORKER))
    await peer.address_of(WORKER)
    assert scheduler.left == [WorkerLeft(worker=WORKER)]


async def test_worker_that_leaves_does_not_wait_for_a_scheduler_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_client, "_LEAVING_TIMEOUT_S", 0.05)
    with pytest.raises(WorkerUnreachable):
        await SchedulerClient(FakeScheduler().find).say_leaving(WorkerLeft(worker=WORKER))


async def test_worker_is_found_without_the_scheduler_once_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_client, "SCHEDULER_TIMEOUT_S", 0.2)
    scheduler, worker = await FakeScheduler().start(), await a_prefill_worker()
    client = SchedulerClient(scheduler.find)
    all_peers = WorkerConnections(client)
    all_peers.learn(client, {WORKER: worker.address, WorkerId("old"): worker.address})
    all_peers.learn(client, {WORKER: worker.address})
    assert scheduler.listener is not None
    await scheduler.listener.close()
    scheduler.listener = None
    assert await PrefillClient(all_peers).prefill(WORKER, REQUEST) is None
    with pytest.raises(Overloaded, match="Scheduler is away"):
        await PrefillClient(all_peers).prefill(WorkerId("old"), REQUEST)


async def test_report_is_not_delivered_when_the_scheduler_stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_client, "SCHEDULER_TIMEOUT_S", 0.3)
    peer = SchedulerClient(FakeScheduler().find)
    report = WorkerReport(
        worker=WORKER, pool=Pool.PREFILL, address=Address("h", 1, "70"), load=WorkerLoad(), max_requests=8
    )
    with pytest.raises(WorkerUnreachable):
        await peer.report(report)


async def test_report_and_its_reply_survive_the_wire() -> None:
    peer = SchedulerClient((await FakeScheduler().start()).find)
    report = WorkerReport(
        worker=WORKER,
        pool=Pool.DECODE,
        address=Address("h", 1, "70"),
        load=WorkerLoad(),
        max_requests=8,
        links={WORKER: LinkSpeed(0.001, 1e9)},
    )
    assert await peer.report(report) == ReportReply(link=LinkOrder(WORKER), gone=(WORKER,))


async def test_worker_that_only_an_absent_scheduler_could_find_is_not_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_client, "SCHEDULER_TIMEOUT_S", 0.2)
    with pytest.raises(Overloaded, match="Scheduler is away"):
        await PrefillClient(WorkerConnections(SchedulerClient(FakeScheduler().find))).prefill(WORKER, REQUEST)


async def test_links_to_workers_that_are_gone_are_not_kept() -> None:
    scheduler, worker = await FakeScheduler().start(), await a_prefill_worker()
    all_peers = WorkerConnections(SchedulerClient(scheduler.find))
    for number in range(3):
        scheduler.addresses[WorkerId(f"p{number}")] = worker.address
        (await all_peers.to(WorkerId(f"p{number}"))).connection.close()
        await asyncio.sleep(0.05)
    assert list(all_peers._links) == ["p2"]


async def test_kv_events_are_heard_before_the_report_that_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = await FakeScheduler().start()
    peer = SchedulerClient(scheduler.find)
    changes = [KvChange(KvTier.HOST, True, [b"12345678"]), KvChange(KvTier.GPU, False, [b"12345678"])]
    messages = [KvEvents(WORKER, 1, True, True, []), KvEvents(WORKER, 2, False, False, changes)]
    await peer.send_kv_events(messages)
    report = WorkerReport(
        worker=WORKER, pool=Pool.DECODE, address=Address("h", 1, "70"), load=WorkerLoad(), max_requests=8
    )
    await peer.report(report)
    assert scheduler.kv_events == messages
    assert scheduler.listener is not None
    await scheduler.listener.close()
    scheduler.listener = None
    monkeypatch.setattr(scheduler_client, "SCHEDULER_TIMEOUT_S", 0.05)
    with pytest.raises(WorkerUnreachable):
        for _ in range(100):  # until it has noticed
            await peer.send_kv_events(messages)
            await asyncio.sleep(0)


async def test_worker_is_told_of_the_tools_that_a_conversation_waits_for() -> None:
    heard: list[ToolWait] = []

    async def nothing(_: None) -> None:
        """The answer to ANSWER."""

    service = Service()
    service.on_post(AWAIT_TOOLS, lambda _, wait: heard.append(wait))
    service.on_call(ANSWER, nothing)
    scheduler = await FakeScheduler().start()
    scheduler.addresses[WORKER] = (await Listener.start("127.0.0.1", service)).address
    peers = WorkerConnections(SchedulerClient(scheduler.find))
    wait, client = ToolWait(b"8 bytes.", 3), DecodeClient(peers)
    client.await_tools(WORKER, wait)  # is not connected: that worker holds nothing of the request
    peer = await peers.to(WORKER)
    client.await_tools(WORKER, wait)
    await peer.call(ANSWER, None)  # in order
    assert heard == [wait]

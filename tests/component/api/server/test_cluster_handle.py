"""What an ingress replica tells of the whole application costs the Scheduler little, however many ask for it."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from api.server import cluster_handle
from api.server.cell_views import CellViews
from api.server.cluster_handle import ClusterHandle, together
from api.server.kept_receipts import MOST_FOUND, KeptReceipt, KeptReceipts
from cluster.clients.scheduler_client import SchedulerClient
from cluster.clients.worker_client import WorkerConnections
from cluster.messages.ids import CellName
from cluster.messages.views import CellState, ClusterView, QueuedRequest
from cluster.rpc.connection import ConnectionLost
from cluster.scheduler_registry import SchedulerRecord
from cluster.slo import SloConfig
from router.session.fallback_placement import FallbackPlacement
from router.session.scheduler_failover import SchedulerFailover
from tests.unit.factories import a_view

MAIN = CellName("main")


class Client(SchedulerClient):
    """Counts what it is asked for."""

    def __init__(self) -> None:
        super().__init__(_nowhere)
        self.num_views = self.num_queues = 0

    async def view(self) -> ClusterView:
        self.num_views += 1
        return a_view()

    async def queue(self) -> list[QueuedRequest]:
        self.num_queues += 1
        return []


async def _nowhere() -> SchedulerRecord:
    raise ConnectionLost("there is no Scheduler")


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    yield Client()


@pytest.fixture
async def scheduling(client: Client) -> AsyncIterator[SchedulerFailover]:
    scheduling = SchedulerFailover(client, WorkerConnections(client), FallbackPlacement(SloConfig()))
    yield scheduling
    scheduling.close()


def a_handle(scheduling: SchedulerFailover, client: Client, max_age_s: float) -> ClusterHandle:
    views = CellViews("baton", {MAIN: client}, lambda: {MAIN: CellState.OPEN})
    return ClusterHandle(scheduling.readiness, views, {MAIN: []}, max_age_s, "demo", KeptReceipts(9))


@pytest.mark.parametrize(("max_age_s", "num_asked"), [(60.0, 1), (0.0, 3)])
async def test_links_and_queue_are_given_again_as_long_as_the_metrics_are(
    client: Client,
    scheduling: SchedulerFailover,
    max_age_s: float,
    num_asked: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_handle, "connected_handles", list)
    cluster = a_handle(scheduling, client, max_age_s)
    for _ in range(3):
        await cluster.view()
        await cluster.queue()
    assert (client.num_views, client.num_queues) == (num_asked, num_asked)


async def test_those_who_ask_for_the_queue_at_once_share_one_answer(
    client: Client, scheduling: SchedulerFailover, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_handle, "connected_handles", list)
    cluster = a_handle(scheduling, client, 0.0)
    await asyncio.gather(*[cluster.queue() for _ in range(100)])
    assert client.num_queues == 1


def test_receipts_of_all_replicas_are_found_once_and_the_newest_first() -> None:
    first, second, third = (KeptReceipt(float(at), f"r{at}", "req", b"") for at in (1, 2, 3))
    found = together("req", [second], [[third, first], TimeoutError("a replica hangs"), [second]])
    assert [kept.request_id for kept in found] == ["r3", "r2", "r1"]
    assert len(together("req", [KeptReceipt(float(at), "r", "req", b"") for at in range(99)], [])) == MOST_FOUND

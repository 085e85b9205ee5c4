"""The live document: shared among those who ask at once, and there while the Scheduler is away."""

import asyncio
from typing import Any

import msgspec
import pytest

from api.server.kept_receipts import KeptReceipts
from api.web import live
from api.web.live import LiveDocuments
from cluster.errors import WorkerUnreachable
from cluster.messages.operations import SchedulerStatus
from tests.component.app_with_fakes import FakeCluster
from tests.unit.factories import a_receipt


class CountedCluster(FakeCluster):
    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.num_asked = 0
        self.is_away = self.hangs = False

    async def statuses(self) -> list[SchedulerStatus]:
        self.num_asked += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.is_away:
            raise WorkerUnreachable("the Scheduler cannot be reached", "scheduler")
        return await super().statuses()


def documents(cluster: FakeCluster, receipts: KeptReceipts | None = None) -> LiveDocuments:
    return LiveDocuments(cluster, receipts or KeptReceipts(5), "replica-0", "baton-demo", clock=lambda: 1000.0)


async def test_many_pages_cost_what_one_costs() -> None:
    cluster = CountedCluster()
    shared = documents(cluster)
    answers = await asyncio.gather(*(shared.get() for _ in range(50)))
    assert len(set(answers)) == 1
    assert await shared.get() == answers[0]
    assert cluster.num_asked == 1


async def test_document_says_that_the_scheduler_is_away_and_what_was_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "EVERY_S", 0.0)
    cluster = CountedCluster()
    shared = documents(cluster)
    before = msgspec.json.decode(await shared.get())
    cluster.is_away = True
    away = msgspec.json.decode(await shared.get())
    assert (before["cluster"]["error"], before["cluster"]["age_s"]) == (None, 0.0)
    assert away["cluster"]["error"] == "the Scheduler cannot be reached"
    assert away["cluster"]["known"] == before["cluster"]["known"]
    assert away["number"] == before["number"] + 1


async def test_scheduler_that_does_not_answer_delays_no_page_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "CLUSTER_TIMEOUT_S", 0.01)
    cluster = CountedCluster()
    cluster.hangs = True
    answer = msgspec.json.decode(await documents(cluster).get())
    assert "has not answered within" in answer["cluster"]["error"]
    assert (answer["cluster"]["known"], answer["cluster"]["age_s"]) == (None, None)


async def test_each_document_has_the_receipts_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "EVERY_S", 0.0)
    receipts = KeptReceipts(3, clock=lambda: 999.0)
    shared = documents(CountedCluster(), receipts)
    seen = []
    for number in range(5):
        receipts.add(a_receipt(f"r{number}"))
        last = msgspec.json.decode(await shared.get())["requests"]["last"]
        seen.append([line["request_id"] for line in last])
    assert seen == [["r0"], ["r1", "r0"], ["r2", "r1", "r0"], ["r3", "r2", "r1"], ["r4", "r3", "r2"]]

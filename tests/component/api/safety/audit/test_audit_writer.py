"""Safety events on their way into a real PostgreSQL, which may be away."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import psycopg
import pytest
from prometheus_client import REGISTRY

from api.safety.audit import audit_writer as module
from api.safety.audit.audit_writer import AuditWriter, NotedEvent
from api.safety.audit.event import SafetyEvent
from api.safety.verdict import StageVerdict
from api.state import administration, lifecycle
from api.state.lifecycle import ChatState
from api.state.postgres.stores.audit import AuditStore
from cluster.config.state import StateConfig
from tests.expected import present
from tests.unit.safety_events import a_safety_event

SOON_S = 30.0


@pytest.fixture(autouse=True)
def tries_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.05)


@pytest.fixture
async def writer(state: ChatState) -> AsyncIterator[AuditWriter]:
    made = AuditWriter(state)
    made.start()
    yield made
    await made.close()


@pytest.fixture
async def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ChatState]:
    """With a PostgreSQL of its own, not started yet."""
    monkeypatch.setattr(lifecycle, "LOOK_INTERVAL_S", 0.05)
    made = ChatState(StateConfig(data_dir=str(tmp_path)))
    yield made
    await made.close()


def servers(folder: Path) -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["cmdline"]) if str(folder / "postgres") in (p.info["cmdline"] or [])]


def noted(writer: AuditWriter, *events: SafetyEvent) -> list[NotedEvent]:
    return [present(writer.note(event)) for event in events]


async def are_durable(waiting: list[NotedEvent]) -> list[bool]:
    async with asyncio.timeout(SOON_S):
        return [await one.is_durable() for one in waiting]


async def ids(state: ChatState, tenant: str = "alice") -> list[str]:
    return [stored.row.id async for stored in state.stores.audit.rows(tenant)]


def counted(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def test_events_are_written_in_their_order(state: ChatState, writer: AuditWriter) -> None:
    before = counted("baton_safety_events_total", result="written")
    events = [a_safety_event(tenant=tenant) for _ in range(250) for tenant in ("alice", "bob")]
    assert await are_durable(noted(writer, *events)) == [True] * 500
    for tenant in ("alice", "bob"):
        assert await ids(state, tenant) == [event.id for event in events if event.tenant == tenant]
        assert (await state.stores.audit.verify(tenant)).broken is None
    assert counted("baton_safety_events_total", result="written") == before + 500
    assert counted("baton_safety_events_waiting") == 0
    assert await writer.drained(SOON_S) == 0


async def test_nothing_is_lost_while_postgres_is_away(
    own_state: ChatState, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    writer = AuditWriter(own_state)
    writer.start()
    early = noted(writer, a_safety_event(), a_safety_event())
    own_state.start()
    assert await are_durable(early) == [True, True]
    events: list[SafetyEvent] = []
    waiting: list[NotedEvent] = []
    for _ in range(3):
        for process in servers(tmp_path):  # while rows are due, and are being written
            process.kill()
        for _ in range(40):
            events.append(a_safety_event())
            waiting += noted(writer, events[-1])
            await asyncio.sleep(0)
        assert await are_durable(waiting) == [True] * len(waiting)
    assert await ids(own_state) == [one.id for one in early] + [event.id for event in events]
    assert (await own_state.stores.audit.verify("alice")).broken is None
    of_writer = [record.getMessage() for record in caplog.records if record.name == "baton.safety"]
    assert [message.partition(",")[0] for message in of_writer] == [
        "safety events cannot be written",
        "safety events are written again",
    ] * (len(of_writer) // 2)
    assert 2 <= len(of_writer) <= 8  # one pair for each outage
    await writer.close()


async def test_batch_whose_acknowledgement_was_lost_is_written_once(
    state: ChatState, writer: AuditWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, failures = AuditStore.append, iter(["the connection was lost after the commit"])

    async def lossy(store: AuditStore, events: Any) -> set[str]:
        stored = await append(store, events)
        for failure in failures:
            raise OSError(failure)
        return stored

    monkeypatch.setattr(AuditStore, "append", lossy)
    events = [a_safety_event() for _ in range(3)]
    assert await are_durable(noted(writer, *events)) == [True] * 3
    assert await ids(state) == [event.id for event in events]


async def test_tenant_whose_events_cannot_be_written_delays_no_other(
    state: ChatState, writer: AuditWriter, postgres: str, caplog: pytest.LogCaptureFixture
) -> None:
    await are_durable(noted(writer, a_safety_event(tenant="broken")))
    with psycopg.connect(postgres) as connection:
        connection.execute("SELECT set_config('app.tenant_id', 'broken', true)")
        connection.execute("UPDATE safety_chains SET mac = '\\x00'")
    stuck = noted(writer, *(a_safety_event(tenant="broken") for _ in range(3)))
    for _ in range(20):
        assert await are_durable(noted(writer, a_safety_event())) == [True]
    assert await writer.drained(0.0) == len(stuck)
    of_writer = [record.getMessage() for record in caplog.records if record.name == "baton.safety"]
    assert len([message for message in of_writer if "tenant 'broken' was changed" in message]) == 1


async def test_writer_is_full_and_has_room_again(own_state: ChatState, monkeypatch: pytest.MonkeyPatch) -> None:
    size = NotedEvent(a_safety_event()).size
    monkeypatch.setattr(module, "MAX_WAITING_BYTES", 6 * size)
    before = counted("baton_safety_events_total", result="lost")
    writer = AuditWriter(own_state)
    kept = noted(writer, a_safety_event(), a_safety_event())
    assert not writer.is_full("alice")
    while (one := writer.note(a_safety_event())) is not None:
        kept.append(one)
    assert len(kept) <= 3 and writer.is_full("alice") and not writer.is_full("bob")
    while (one := writer.note(a_safety_event(tenant="bob"))) is not None:
        kept.append(one)
    assert len(kept) <= 6 and writer.is_full("carol")
    assert counted("baton_safety_events_total", result="lost") == before + 2
    assert counted("baton_safety_events_waiting") == len(kept)
    writer.start()
    own_state.start()
    assert await are_durable(kept) == [True] * len(kept)
    assert not (writer.is_full("alice") or writer.is_full("carol"))
    await writer.close()


async def test_event_that_could_not_be_read_again_is_refused_at_once(writer: AuditWriter) -> None:
    verdict: Any = StageVerdict("lists", "1", {"no category": 0.5})  # type: ignore[dict-item]  # as a bug may do
    with pytest.raises(ValueError, match="no category"):
        writer.note(a_safety_event(verdicts=[verdict]))


async def test_change_after_it_was_noted_changes_nothing(state: ChatState, writer: AuditWriter) -> None:
    categories = ["hate"]
    event = a_safety_event(categories=categories)
    waiting = noted(writer, event)
    categories.append("violence")
    await are_durable(waiting)
    assert (await state.stores.audit.get("alice", event.id)).row.categories == ("hate",)


async def test_events_of_an_erased_tenant_are_dropped(
    state: ChatState, writer: AuditWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(administration, "REPLICAS_LOOK_S", 0.0)
    await are_durable(noted(writer, a_safety_event()))
    await state.administration(lambda _: None).erase("alice")
    assert await are_durable(noted(writer, a_safety_event())) == [False]


async def test_close_tells_what_is_lost(own_state: ChatState, caplog: pytest.LogCaptureFixture) -> None:
    before = counted("baton_safety_events_waiting")
    writer = AuditWriter(own_state)
    writer.start()
    noted(writer, a_safety_event(), a_safety_event())
    assert await writer.drained(0.2) == 2
    await writer.close()
    assert "2 safety events are lost" in caplog.text
    assert counted("baton_safety_events_waiting") == before


def test_encoded_event_is_the_event() -> None:
    event = a_safety_event(evidence=b"x")
    assert msgspec.structs.asdict(NotedEvent(event).event()) == msgspec.structs.asdict(event)

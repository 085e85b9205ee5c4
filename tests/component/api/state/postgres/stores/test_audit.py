"""The audit log in a real PostgreSQL: what is appended stays, and what is done to it by hand is found."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, LiteralString

import msgspec
import psycopg
import pytest

from api.safety.audit.event import SafetyAction, SafetyEvent, evidence_of, fingerprint
from api.safety.verdict import Category, StageVerdict
from api.state import administration
from api.state.lifecycle import ChatState
from api.state.postgres.audit_chain import Link
from api.state.postgres.stores import audit as module
from api.state.postgres.stores.audit import AuditFilter, AuditStore
from api.wire.pages import Page
from cluster.config.state import StateConfig, TenantStateConfig
from cluster.errors import Conflict, NotFound, ServingError
from tests.component.reached import reached
from tests.expected import present
from tests.unit.safety_events import a_safety_event

NEWEST, OLDEST = Page(None, 10, True), Page(None, 10, False)
TRIGGERS = ("safety_event_changed", "safety_events_gone", "safety_chain_changed")


@pytest.fixture
def store(state: ChatState) -> AuditStore:
    return state.stores.audit


@pytest.fixture
async def elsewhere(state: ChatState, postgres: str, tmp_path: Path) -> AsyncIterator[ChatState]:
    """Another replica."""
    async with reached(ChatState(StateConfig(database_url=postgres, data_dir=str(tmp_path)))) as opened:
        yield opened


@pytest.fixture
def by_hand(state: ChatState, postgres: str) -> Callable[..., None]:
    """A statement of the role that Baton has. `forced`: it drops the triggers first, as the owner of the tables can."""

    def run(statement: LiteralString, *values: Any, tenant: str = "alice", forced: bool = True) -> None:
        with psycopg.connect(postgres) as connection:
            connection.execute("SELECT set_config('app.tenant_id', %s, true)", [tenant])
            if forced:
                for table in ("safety_events", "safety_chains"):
                    connection.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
            connection.execute(statement, values)
            if forced:
                for table in ("safety_events", "safety_chains"):
                    connection.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")

    return run


def num_rows(postgres: str, table: str) -> int:
    with psycopg.connect(postgres) as connection:
        connection.execute("SELECT set_config('app.tenant_id', '*', true)")
        return int(present(connection.execute(f"SELECT count(*) FROM {table}").fetchone())[0])


async def ids(store: AuditStore, tenant: str = "alice") -> list[str]:
    return [stored.row.id async for stored in store.rows(tenant)]


async def filled(store: AuditStore, number: int, **fields: Any) -> list[SafetyEvent]:
    events = [a_safety_event(**fields) for _ in range(number)]
    assert await store.append(events) == {event.id for event in events}
    return events


async def why_broken(store: AuditStore, tenant: str = "alice") -> tuple[int, str]:
    broken = present((await store.verify(tenant)).broken)
    return broken.sequence, broken.why


async def test_event_is_stored_as_it_was(store: AuditStore) -> None:
    text = "größer \0 😀"
    event = a_safety_event(
        categories=[Category.HATE, Category.VIOLENCE],
        verdicts=[StageVerdict("lists", "1", {Category.HATE: 0.123456789}), StageVerdict("guard", "g", error="away")],
        text_sha256=fingerprint(text),
        evidence=evidence_of(text),
    )
    await store.append([event])
    found = await store.get("alice", event.id)
    row = found.row
    for name in ("id", "tenant", "request_id", "at", "direction", "action", "policy_version"):
        assert getattr(row, name) == getattr(event, name)
    assert row.categories == ("hate", "violence")
    assert msgspec.json.decode(row.verdicts, type=list[StageVerdict]) == event.verdicts
    assert present(found.evidence()).decode() == text
    assert row.text_mac != event.text_sha256
    verified = await store.verify("alice")
    assert (verified.num_rows, verified.head, verified.broken) == (1, Link(1, found.hash), None)


async def test_same_text_has_the_same_hash_within_its_tenant_alone(store: AuditStore) -> None:
    of_text = {"text_sha256": fingerprint("hello")}
    events = [a_safety_event(**of_text), a_safety_event(**of_text), a_safety_event(tenant="bob", **of_text)]
    await store.append(events)
    one, same, other = [(await store.get(event.tenant, event.id)).row.text_mac for event in events]
    assert one == same != other


async def test_evidence_is_encrypted_at_rest(store: AuditStore, postgres: str) -> None:
    await store.append([a_safety_event(evidence=b"a private matter")])
    with psycopg.connect(postgres) as connection:
        assert connection.execute("SELECT * FROM safety_events").fetchall() == []
        connection.execute("SELECT set_config('app.tenant_id', '*', true)")
        assert "private" not in str(connection.execute("SELECT * FROM safety_events").fetchall())


async def test_event_that_is_sent_twice_is_stored_once(store: AuditStore) -> None:
    first, second, third = (a_safety_event() for _ in range(3))
    await store.append([first, second])
    again = msgspec.structs.replace(second, action=SafetyAction.CUT)
    assert await store.append([first, again, third, third]) == {first.id, second.id, third.id}
    assert await ids(store) == [first.id, second.id, third.id]
    assert (await store.get("alice", second.id)).row.action == "blocked"
    assert (await store.verify("alice")).broken is None


async def test_replicas_extend_one_chain(store: AuditStore, elsewhere: ChatState, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "READ_AT_ONCE", 7)
    batches = [[a_safety_event() for _ in range(3)] for _ in range(12)]
    stores = [store, elsewhere.stores.audit]
    await asyncio.gather(*(stores[place % 2].append(batch) for place, batch in enumerate(batches)))
    verified = await store.verify("alice")
    assert (verified.num_rows, verified.broken) == (36, None)
    stored = await ids(store)
    for batch in batches:  # each stays together, in its order
        first = stored.index(batch[0].id)
        assert stored[first : first + 3] == [event.id for event in batch]


async def test_chain_that_grows_during_the_walk_is_sound(
    store: AuditStore, elsewhere: ChatState, monkeypatch: Any
) -> None:
    monkeypatch.setattr(module, "READ_AT_ONCE", 2)
    await filled(store, 20)

    async def grow() -> None:
        for _ in range(20):
            await filled(elsewhere.stores.audit, 1)

    growing = asyncio.create_task(grow())
    while not growing.done():
        assert (await store.verify("alice")).broken is None
    await growing


async def test_events_are_listed_and_selected(store: AuditStore) -> None:
    blocked, cut, passed = events = [
        a_safety_event(),
        a_safety_event(action=SafetyAction.CUT, direction="output", categories=[Category.VIOLENCE]),
        a_safety_event(action=SafetyAction.PASSED, request_id="mine", categories=[]),
    ]
    await store.append(events)

    async def found(page: Page = NEWEST, **only: str) -> list[str]:
        return [stored.row.id for stored in (await store.find("alice", page, AuditFilter(**only))).data]

    assert await found() == [passed.id, cut.id, blocked.id]
    assert await found(OLDEST) == [blocked.id, cut.id, passed.id]
    assert await found(action="cut") == await found(direction="output") == await found(category="violence") == [cut.id]
    assert await found(request_id="mine") == [passed.id]
    assert await found(Page(passed.id, 1, True)) == [cut.id]
    assert (await store.find("alice", Page(None, 2, True))).has_more
    with pytest.raises(NotFound):
        await found(Page("sfe_unknown", 1, True))


async def test_tenants_see_their_own_events_alone(store: AuditStore, by_hand: Callable[..., None]) -> None:
    (hers,) = await filled(store, 1)
    (his,) = await filled(store, 1, tenant="bob")
    assert await store.tenants() == ["alice", "bob"]
    assert (await ids(store), await ids(store, "bob")) == ([hers.id], [his.id])
    with pytest.raises(NotFound) as caught:
        await store.get("alice", his.id)
    assert caught.value.code == "safety_event_not_found"
    for table in ("safety_events", "safety_chains"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            by_hand(f"INSERT INTO {table} SELECT * FROM {table}", tenant="*")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE safety_events SET action = 'passed'",
        "UPDATE safety_events SET evidence = NULL, key_version = NULL, evidence_mac = NULL",
        "UPDATE safety_events SET sequence = sequence + 10",
        "DELETE FROM safety_events",
        "DELETE FROM safety_events WHERE sequence = 1",
        "TRUNCATE safety_events CASCADE",
        "DELETE FROM safety_chains",
        "TRUNCATE safety_chains CASCADE",
        "UPDATE safety_chains SET head_sequence = head_sequence - 1",
        "UPDATE safety_chains SET begins_at = 1",
    ],
)
async def test_log_is_append_only(store: AuditStore, by_hand: Callable[..., None], statement: LiteralString) -> None:
    events = await filled(store, 3, evidence=b"x")
    with pytest.raises(psycopg.errors.RaiseException):
        by_hand(statement, forced=False)
    assert await ids(store) == [event.id for event in events]
    assert (await store.verify("alice")).broken is None


@pytest.mark.parametrize(
    ("statement", "sequence"),
    [
        ("UPDATE safety_events SET action = 'passed' WHERE sequence = 2", 2),
        ("UPDATE safety_events SET at = at + 1 WHERE sequence = 2", 2),
        ("UPDATE safety_events SET categories = '{}' WHERE sequence = 2", 2),
        ("UPDATE safety_events SET verdicts = '[]' WHERE sequence = 2", 2),
        ("UPDATE safety_events SET text_mac = NULL WHERE sequence = 2", 2),
        ("UPDATE safety_events SET evidence = '\\x00' WHERE sequence = 2", 2),
        ("UPDATE safety_events SET key_version = 9 WHERE sequence = 2", 2),
        ("UPDATE safety_events SET evidence = NULL, key_version = NULL, evidence_mac = NULL WHERE sequence = 2", 2),
        ("DELETE FROM safety_events WHERE sequence = 1", 1),
        ("DELETE FROM safety_events WHERE sequence = 2", 2),
        ("DELETE FROM safety_events WHERE sequence = 4", 4),
        ("UPDATE safety_events SET sequence = 5 WHERE sequence = 4", 4),
        ("UPDATE safety_events SET sequence = -sequence WHERE sequence IN (2, 3)", 1),
        (
            "INSERT INTO safety_events SELECT tenant_id, 5, 'sfe_forged', request_id, at, direction, action, "
            "policy_version, categories, verdicts, text_mac, NULL, NULL, NULL, hash FROM safety_events "
            "WHERE sequence = 4",
            5,
        ),
    ],
)
async def test_what_the_owner_of_the_tables_does_is_found(
    store: AuditStore, by_hand: Callable[..., None], statement: LiteralString, sequence: int
) -> None:
    await filled(store, 4, evidence=b"x", text_sha256=fingerprint("x"))
    by_hand(statement)
    assert (await why_broken(store))[0] == sequence


async def test_evidence_that_was_exchanged_is_found(store: AuditStore, by_hand: Callable[..., None]) -> None:
    events = [a_safety_event(evidence=b"one"), a_safety_event(evidence=b"two")]
    await store.append(events)
    by_hand(
        "UPDATE safety_events e SET evidence = o.evidence FROM safety_events o WHERE e.sequence = 1 AND o.sequence = 2"
    )
    sequence, why = await why_broken(store)
    assert sequence == 1 and events[0].id in why


@pytest.mark.parametrize(
    "change",
    [
        "head_sequence = 1, head_hash = (SELECT hash FROM safety_events WHERE sequence = 1)",
        "anchor_sequence = 1, anchor_hash = (SELECT hash FROM safety_events WHERE sequence = 1)",
        "mac = '\\x00'",
        "chain_key = '\\x00'",
    ],
)
async def test_nobody_extends_a_chain_whose_row_was_changed(
    store: AuditStore, by_hand: Callable[..., None], change: LiteralString
) -> None:
    await filled(store, 2)
    by_hand(f"UPDATE safety_chains SET {change}")
    assert "of tenant 'alice'" in (await why_broken(store))[1]
    with pytest.raises(ServingError):
        await filled(store, 1)
    with pytest.raises(ServingError):
        await store.delete_before("alice", 1e12)
    assert len(await ids(store)) == 2


async def test_log_that_was_put_back_is_found_by_a_noted_head(
    store: AuditStore, by_hand: Callable[..., None], postgres: str
) -> None:
    await filled(store, 1)
    with psycopg.connect(postgres) as connection:
        connection.execute("SELECT set_config('app.tenant_id', 'alice', true)")
        query = "SELECT head_sequence, head_hash, mac FROM safety_chains"
        earlier = present(connection.execute(query).fetchone())
    await filled(store, 2)
    noted = present((await store.verify("alice")).head)
    await filled(store, 1)
    assert (await store.verify("alice", noted)).broken is None
    by_hand("DELETE FROM safety_events WHERE sequence > 1")
    by_hand("UPDATE safety_chains SET head_sequence = %s, head_hash = %s, mac = %s", *earlier)
    assert (await store.verify("alice")).broken is None
    assert present((await store.verify("alice", noted)).broken).sequence == 3
    await filled(store, 3)
    assert present((await store.verify("alice", noted)).broken).sequence == 3


async def test_retention_deletes_a_beginning_that_the_rest_goes_on_from(
    store: AuditStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DELETED_AT_ONCE", 2)
    old = await filled(store, 5)
    (future,) = await filled(store, 1, at=3e9)
    late = await filled(store, 1)  # it was written late
    noted = present((await store.verify("alice")).head)
    assert await store.delete_before("alice", old[3].at) == 3
    assert await store.delete_before("alice", old[3].at) == 0
    assert await ids(store) == [event.id for event in (*old[3:], future, *late)]
    assert (await store.verify("alice", noted)).broken is None
    assert await store.delete_before("alice", 2e9) == 2
    assert await ids(store) == [future.id, *[event.id for event in late]]
    await filled(store, 1)
    verified = await store.verify("alice", noted)
    assert (verified.num_rows, present(verified.head).sequence, verified.broken) == (3, 8, None)
    assert await store.delete_before("alice", 4e9) == 3
    assert present((await store.verify("alice")).head).sequence == 8
    await filled(store, 1)
    verified = await store.verify("alice")
    assert (verified.num_rows, present(verified.head).sequence, verified.broken) == (1, 9, None)


async def test_head_that_the_retention_has_deleted_cannot_be_compared(store: AuditStore) -> None:
    await filled(store, 1)
    noted = present((await store.verify("alice")).head)
    await filled(store, 1)
    await store.delete_before("alice", 2e9)
    assert "note a newer head" in present((await store.verify("alice", noted)).broken).why


async def test_retention_does_not_delete_what_was_made_to_look_old(
    store: AuditStore, by_hand: Callable[..., None]
) -> None:
    await filled(store, 2, at=2e9)
    by_hand("UPDATE safety_events SET at = 1")
    with pytest.raises(ServingError, match="safety event 1 of tenant 'alice'"):
        await store.delete_before("alice", 1e9)
    assert len(await ids(store)) == 2


async def test_job_of_an_ingress_deletes_old_events(
    store: AuditStore, by_hand: Callable[..., None], postgres: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await filled(store, 2)
    (kept,) = await filled(store, 1, at=4e9)
    await filled(store, 1, tenant="broken")
    by_hand("UPDATE safety_chains SET mac = '\\x00'", tenant="broken")
    for days, left in ((None, 3), (30, 1)):
        async with reached(
            ChatState(StateConfig(database_url=postgres, data_dir=str(tmp_path), audit_days=days))
        ) as ingress:
            await ingress.stores.retention.run()
        assert len(await ids(store)) == left
    assert await ids(store) == [kept.id]
    assert len(await ids(store, "broken")) == 1
    assert "old safety events are not deleted" in caplog.text


async def test_rotation_of_the_key_leaves_the_log_as_it_is(store: AuditStore, state: ChatState) -> None:
    with_evidence, _ = events = [a_safety_event(evidence=b"x"), a_safety_event()]
    await store.append(events)
    before = await store.verify("alice")
    assert await state.administration(lambda _: None).rotate("alice") == [1]
    assert await store.verify("alice") == before
    assert (await store.get("alice", with_evidence.id)).evidence() == b"x"
    await filled(store, 1, evidence=b"y")
    assert (await store.verify("alice")).broken is None


async def test_rotation_before_the_first_event_is_no_erasure(store: AuditStore, state: ChatState) -> None:
    await state.stores.conversations.create("alice", {}, [])
    with pytest.raises(NotFound):
        await store.verify("alice")
    message = {"type": "message", "role": "user", "status": "completed", "content": []}
    await state.stores.conversations.create("alice", {}, [message])
    for _ in range(2):
        await state.administration(lambda _: None).rotate("alice")
    await filled(store, 1, at=1.0)


async def test_erasure_takes_the_log_and_nothing_brings_it_back(
    store: AuditStore, state: ChatState, postgres: str, by_hand: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(administration, "REPLICAS_LOOK_S", 0.0)
    (before,) = await filled(store, 1, evidence=b"x")
    await state.stores.appeals.open("alice", before.id, "why")
    erased = await state.administration(lambda _: None).erase("alice")
    assert (erased["safety_events"], erased["safety_chains"], erased["safety_appeals"]) == (1, 1, 1)
    assert num_rows(postgres, "safety_events") == 0
    with pytest.raises(Conflict):
        await store.append([before])
    by_hand("UPDATE tenants SET erasing_since = NULL, erased_at = NULL")
    after = a_safety_event(at=4e9)
    assert await store.append([before, after]) == {after.id}
    assert await ids(store) == [after.id]
    with pytest.raises(NotFound):
        await store.verify("nobody")


async def test_evidence_takes_the_room_of_its_tenant_and_events_do_not(
    store: AuditStore, state: ChatState, postgres: str, tmp_path: Path
) -> None:
    tenants = {"anonymous": TenantStateConfig(max_bytes=4096)}
    async with reached(
        ChatState(StateConfig(database_url=postgres, data_dir=str(tmp_path), tenants=tenants))
    ) as ingress:
        fits, too_much = [a_safety_event(tenant="anonymous", evidence=bytes(3000)) for _ in range(2)]
        for event in (fits, too_much):
            assert await ingress.stores.audit.append([event]) == {event.id}
        found = [await store.get("anonymous", event.id) for event in (fits, too_much)]
        assert [stored.evidence() for stored in found] == [bytes(3000), None]
        await filled(ingress.stores.audit, 30, tenant="anonymous")
        assert (await store.verify("anonymous")).broken is None
        assert await store.delete_before("anonymous", 2e9) == 32
        with psycopg.connect(postgres) as connection:
            connection.execute("SELECT set_config('app.tenant_id', '*', true)")
            query = "SELECT sum(bytes) FROM tenant_bytes WHERE tenant_id = 'anonymous'"
            assert present(connection.execute(query).fetchone())[0] == 0

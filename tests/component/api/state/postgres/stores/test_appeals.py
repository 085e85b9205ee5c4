"""Appeals against safety decisions, in a real PostgreSQL."""

import asyncio
from typing import Any

import msgspec
import psycopg
import pytest

from api.safety.audit.event import Direction, SafetyAction, SafetyEvent
from api.safety.verdict import StageVerdict
from api.state.lifecycle import ChatState
from api.state.postgres.stores.appeals import MAX_REASON, AppealStatus, AppealStore
from api.wire.pages import Page
from cluster.config.state import StateConfig, TenantStateConfig
from cluster.errors import Conflict, InvalidRequest, NotFound
from tests.component.reached import reached
from tests.unit.safety_events import a_safety_event

NEWEST, OLDEST = Page(None, 10, True), Page(None, 10, False)
DECISIONS = (AppealStatus.UPHELD, AppealStatus.OVERTURNED)


@pytest.fixture
def appeals(state: ChatState) -> AppealStore:
    return state.stores.appeals


async def an_event(state: ChatState, **fields: Any) -> SafetyEvent:
    event = a_safety_event(**fields)
    await state.stores.audit.append([event])
    return event


async def test_appeal_is_what_was_said(state: ChatState, appeals: AppealStore) -> None:
    event = await an_event(state)
    made = await appeals.open("alice", event.id, "It was a joke. 😀\0")
    assert made.id.startswith("apl_")
    assert (made.event, made.reason, made.status) == (event.id, "It was a joke. 😀\0", AppealStatus.OPEN)
    assert (made.reviewer, made.note, made.decided_at) == (None, None, None)
    assert await appeals.get("alice", made.id) == made


async def test_one_appeal_against_an_event_is_open_at_a_time(state: ChatState, appeals: AppealStore) -> None:
    event = await an_event(state)
    tries = [appeals.open("alice", event.id, "why") for _ in range(4)]
    done = await asyncio.gather(*tries, return_exceptions=True)
    refused = [one for one in done if isinstance(one, Conflict)]
    assert (len(refused), {error.code for error in refused}) == (3, {"appeal_open"})
    (made,) = (await appeals.find("alice", NEWEST)).data
    await appeals.decide("alice", made.id, AppealStatus.UPHELD, "ann", "")
    assert (await appeals.open("alice", event.id, "again")).id != made.id


async def test_appeal_needs_an_event_that_has_withheld_something(state: ChatState, appeals: AppealStore) -> None:
    theirs = await an_event(state, tenant="bob")
    for unknown in (theirs.id, "sfe_unknown", ""):
        with pytest.raises(NotFound) as caught:
            await appeals.open("alice", unknown, "why")
        assert caught.value.code == "safety_event_not_found"
    for action in (SafetyAction.PASSED, SafetyAction.NOT_SCANNED, SafetyAction.WOULD_BLOCK):
        with pytest.raises(InvalidRequest, match="nothing was withheld"):
            await appeals.open("alice", (await an_event(state, action=action)).id, "why")
    with pytest.raises(InvalidRequest, match="nothing was withheld"):
        await appeals.open("alice", (await an_event(state, direction=Direction.APPEAL)).id, "why")


@pytest.mark.parametrize("reason", ["", "x" * (MAX_REASON + 1), "\ud800"])
async def test_reason_that_cannot_be_kept_is_refused(state: ChatState, appeals: AppealStore, reason: str) -> None:
    with pytest.raises(InvalidRequest):
        await appeals.open("alice", (await an_event(state)).id, reason)
    assert (await appeals.find("alice", NEWEST)).data == []


@pytest.mark.parametrize(("status", "action"), [(AppealStatus.UPHELD, "blocked"), (AppealStatus.OVERTURNED, "passed")])
async def test_decision_is_an_event_of_the_log(
    state: ChatState, appeals: AppealStore, status: AppealStatus, action: str
) -> None:
    event = await an_event(state)
    made = await appeals.open("alice", event.id, "why")
    decided = await appeals.decide("alice", made.id, status, "ann", "seen")
    assert (decided.status, decided.reviewer, decided.note, decided.reason) == (status, "ann", "seen", "why")
    assert decided.decided_at is not None
    assert await appeals.get("alice", made.id) == decided
    row = (await state.stores.audit.find("alice", NEWEST)).data[0].row
    assert (row.direction, row.action, row.request_id) == ("appeal", action, event.request_id)
    named = msgspec.json.decode(row.verdicts, type=list[StageVerdict])
    assert {one.stage: one.version for one in named} == {"event": event.id, "appeal": made.id, "reviewer": "ann"}
    assert (await state.stores.audit.verify("alice")).broken is None


async def test_appeal_is_decided_once(state: ChatState, appeals: AppealStore) -> None:
    made = await appeals.open("alice", (await an_event(state)).id, "why")
    tries = [appeals.decide("alice", made.id, status, "ann", "") for status in DECISIONS for _ in "12"]
    done = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(isinstance(one, Conflict) for one in done) == 3
    assert len((await state.stores.audit.find("alice", NEWEST)).data) == 2
    with pytest.raises(NotFound):
        await appeals.decide("alice", "apl_unknown", AppealStatus.UPHELD, "ann", "")
    with pytest.raises(InvalidRequest):
        await appeals.decide("alice", made.id, AppealStatus.OPEN, "ann", "")


async def test_appeals_are_listed_and_selected(state: ChatState, appeals: AppealStore) -> None:
    first, second, third = [(await appeals.open("alice", (await an_event(state)).id, "why")).id for _ in range(3)]
    await appeals.open("bob", (await an_event(state, tenant="bob")).id, "why")
    await appeals.decide("alice", second, AppealStatus.UPHELD, "ann", "")

    async def ids(page: Page, status: AppealStatus | None = None) -> list[str]:
        return [one.id for one in (await appeals.find("alice", page, status)).data]

    assert await ids(NEWEST) == [third, second, first]
    assert await ids(OLDEST) == [first, second, third]
    assert await ids(NEWEST, AppealStatus.OPEN) == [third, first]
    assert await ids(Page(third, 1, True)) == [second]
    assert (await appeals.find("alice", Page(None, 2, True))).has_more
    for ask in (appeals.get("bob", first), appeals.find("bob", Page(first, 1, True))):
        with pytest.raises(NotFound):
            await ask


async def test_appeal_goes_with_its_event(state: ChatState, appeals: AppealStore) -> None:
    made = await appeals.open("alice", (await an_event(state)).id, "why")
    assert await state.stores.audit.delete_before("alice", 4e9) == 1
    with pytest.raises(NotFound):
        await appeals.get("alice", made.id)


async def test_texts_are_encrypted_at_rest_and_survive_a_rotation(
    state: ChatState, appeals: AppealStore, postgres: str
) -> None:
    made = await appeals.open("alice", (await an_event(state)).id, "a private matter")
    await appeals.decide("alice", made.id, AppealStatus.UPHELD, "ann", "a private note")
    with psycopg.connect(postgres) as connection:
        connection.execute("SELECT set_config('app.tenant_id', '*', true)")
        assert "private" not in str(connection.execute("SELECT * FROM safety_appeals").fetchall())
    await state.administration(lambda _: None).rotate("alice")
    found = await appeals.get("alice", made.id)
    assert (found.reason, found.note) == ("a private matter", "a private note")


async def test_appeals_take_the_room_of_their_tenant(state: ChatState, postgres: str, tmp_path: Any) -> None:
    tenants = {"anonymous": TenantStateConfig(max_bytes=2048)}
    async with reached(
        ChatState(StateConfig(database_url=postgres, data_dir=str(tmp_path), tenants=tenants))
    ) as ingress:
        events = [await an_event(ingress, tenant="anonymous") for _ in range(3)]
        for event in events[:2]:
            await ingress.stores.appeals.open("anonymous", event.id, "x" * 300)
        with pytest.raises(InvalidRequest) as caught:
            await ingress.stores.appeals.open("anonymous", events[2].id, "x" * 300)
        assert caught.value.code == "storage_quota_exceeded"

"""Safety events and appeals over HTTP, in a real PostgreSQL."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, ConflictError, NotFoundError

from api.frontend.frontend import Frontend
from api.safety.audit.audit_writer import AuditWriter
from api.state.lifecycle import ChatState
from api.state.postgres.stores.appeals import AppealStatus
from tests.component.api.safety.guards.fake_guard import FakeGuard, GuardFault
from tests.component.app_with_postgres import ClientOf, clients_of
from tests.component.fake_engines import FakeEngines
from tests.component.safety_folder import POLICY, safety_in

pytestmark = [
    pytest.mark.filterwarnings("ignore:max_tokens is deprecated:DeprecationWarning"),  # vLLM reads its own field
]


@pytest.fixture
async def writer(state: ChatState) -> AsyncIterator[AuditWriter]:
    writer = AuditWriter(state)
    writer.start()
    yield writer
    await writer.close()


@pytest.fixture
async def clients(state: ChatState, writer: AuditWriter, tmp_path: Path) -> AsyncIterator[ClientOf]:
    frontend = await FakeEngines().frontend(512, safety_in(tmp_path / "safety"), audit=writer)
    async with clients_of(state, frontend) as found:
        yield found
    await frontend.close()


async def blocked_event(client: AsyncOpenAI, writer: AuditWriter) -> str:
    with pytest.raises(BadRequestError) as refused:
        await client.responses.create(model="baton-demo", input="Cook glue soup")
    await writer.drained(10)
    return str(refused.value.response.headers["x-safety-event-id"])


async def get(client: AsyncOpenAI, path: str, **query: Any) -> dict[str, Any]:
    return await client.get(f"/safety/{path}", cast_to=dict[str, Any], options={"params": query})


async def appeal(client: AsyncOpenAI, event: str, **fields: Any) -> dict[str, Any]:
    body = {"event_id": event, "reason": "It is a recipe."} | fields
    return await client.post("/safety/appeals", cast_to=dict[str, Any], body=body)


async def test_refused_request_is_on_record_for_its_tenant_alone(clients: ClientOf, writer: AuditWriter) -> None:
    alice, bob = clients("sk-alice"), clients("sk-bob")
    event = await blocked_event(alice, writer)
    found = await get(alice, f"events/{event}")
    assert (found["action"], found["direction"], found["categories"]) == ("blocked", "input", ["violence"])
    assert [one["id"] for one in (await get(alice, "events", action="blocked"))["data"]] == [event]
    assert (await get(alice, "events", category="hate"))["data"] == (await get(bob, "events"))["data"] == []
    for refused in (get(bob, f"events/{event}"), appeal(bob, event)):
        with pytest.raises(NotFoundError):
            await refused


async def test_appeal_is_heard_once_and_its_decision_is_on_record(
    clients: ClientOf, writer: AuditWriter, state: ChatState
) -> None:
    alice = clients("sk-alice")
    event = await blocked_event(alice, writer)
    made = await appeal(alice, event)
    assert (made["status"], made["event_id"], made["note"]) == ("open", event, None)
    with pytest.raises(ConflictError):
        await appeal(alice, event)
    (tenant,) = await state.stores.audit.tenants()
    await state.stores.appeals.decide(tenant, made["id"], AppealStatus.OVERTURNED, "Rita", "A recipe, indeed.")
    told = await get(alice, f"appeals/{made['id']}")
    assert (told["status"], told["note"]) == ("overturned", "A recipe, indeed.")
    assert [one["id"] for one in (await get(alice, "appeals"))["data"]] == [made["id"]]
    assert (await get(alice, "events", direction="appeal"))["data"] != []
    assert (await state.stores.audit.verify(tenant)).broken is None


@pytest.mark.parametrize("fault", [None, GuardFault.FAILS])
async def test_appeal_has_a_second_opinion(
    state: ChatState, writer: AuditWriter, tmp_path: Path, fault: GuardFault | None
) -> None:
    """The lists have blocked, so the guard is asked. Without it, only the lists have looked."""
    async with FakeGuard("llama_guard") as guard:
        config = {"url": guard.url, "model": "guard", "dialect": "llama_guard"}
        safety = safety_in(tmp_path / "safety", f"keeps_text = true\n{POLICY}", guard=config)
        frontend = await FakeEngines().frontend(512, safety, audit=writer)
        async with clients_of(state, frontend) as clients:
            alice = clients("sk-alice")
            event = await blocked_event(alice, writer)
            guard.fault = fault
            made = await appeal(alice, event)
            (tenant,) = await state.stores.audit.tenants()
            kept = await state.stores.appeals.get(tenant, made["id"])
            review = json.loads(kept.review or "")
            assert (review["terms"], review["error"]) == (["glue soup"], "")
            if fault is None:
                assert (review["second"], review["is_confirmed"]) == ("guard", False)
            else:
                assert (review["second"], review["is_confirmed"]) == ("", None)
            await state.stores.appeals.decide(tenant, made["id"], AppealStatus.OVERTURNED, "Rita", "")
            assert (await state.stores.appeals.get(tenant, made["id"])).review == kept.review
        await frontend.close()


async def test_appeal_counts_also_if_nothing_can_look_at_the_text(
    clients: ClientOf, writer: AuditWriter, state: ChatState, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object) -> None:
        raise RuntimeError("a plug-in has failed")

    alice = clients("sk-alice")
    event = await blocked_event(alice, writer)
    monkeypatch.setattr(Frontend, "reviewed", fails)
    made = await appeal(alice, event)
    (tenant,) = await state.stores.audit.tenants()
    assert (await state.stores.appeals.get(tenant, made["id"])).review is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"event_id": None}, "event_id"),
        ({"reason": ""}, "reason"),
        ({"reason": 7}, "reason"),
        ({"reason": "x" * 5000}, "reason"),
        ({"more": 1}, "more"),
    ],
)
async def test_wrong_appeal_is_a_clear_400(
    clients: ClientOf, writer: AuditWriter, fields: dict[str, Any], param: str
) -> None:
    alice = clients("sk-alice")
    event = await blocked_event(alice, writer)
    with pytest.raises(BadRequestError) as refused:
        await appeal(alice, event, **fields)
    assert refused.value.param == param

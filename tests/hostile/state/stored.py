"""What lies in PostgreSQL, as one sees it who may see all rows."""

from typing import Any

import httpx
import psycopg

from api.identity.tenants import tenant_of_key
from api.routes.services import IngressServices
from api.state.lifecycle import ChatState
from api.state.postgres.database import Database
from tests.expected import of_kind, present
from tests.unit.safety_events import a_safety_event

SAID = [{"type": "message", "role": "user", "content": "canary"}]
TEXTS = {
    "conversations": ("title",),
    "items": ("body",),
    "responses": ("body", "asked", "outcome"),
    "response_events": ("events",),
    "chat_completions": ("body", "messages"),
    "feedback": ("comment",),
    "safety_events": ("evidence",),
    "safety_appeals": ("reason", "note", "review"),
}
"""The sealed columns of each table."""


def rows(url: str, query: str, values: Any = None, tenant: str = "*") -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT set_config('app.tenant_id', %s, false)", [tenant])
        done = connection.execute(query, values)
        return done.fetchall() if done.description else []


def num_bytes(url: str) -> int:
    """Bytes of all sealed texts."""
    return sum(
        rows(url, f"SELECT coalesce(sum(octet_length({column})), 0) FROM {table}")[0][0]
        for table, columns in TEXTS.items()
        for column in columns
    )


def database_of(state: ChatState) -> Database:
    """The database of a state that was reached."""
    return present(state._database)


def services_of(http: httpx.AsyncClient) -> IngressServices:
    """Services of the application that a client of `http_of` calls."""
    app: Any = of_kind(httpx.ASGITransport, http._transport).app
    return of_kind(IngressServices, app.state.services)


async def with_everything(http: httpx.AsyncClient) -> str:
    """A tenant of whom there is something in every table. Returns a conversation."""
    made = {"items": SAID, "title": "canary", "metadata": {"canary": "canary"}, "user": "canary"}
    conversation = (await http.post("/v1/conversations", json=made)).json()["id"]
    turn = {"model": "m", "input": "canary", "conversation": conversation}
    response = (await http.post("/v1/responses", json=turn, headers={"idempotency-key": "canary"})).json()["id"]
    await http.post("/v1/feedback", json={"response_id": response, "rating": 1, "comment": "canary"})
    await http.get(f"/v1/conversations/{conversation}")  # of which a copy is kept
    await http.get(f"/v1/conversations/{conversation}/items")
    await http.post("/v1/chat/completions", json={"model": "m", "messages": SAID, "store": True})
    services = services_of(http)
    await services.completion_writer.drained()
    tenant = tenant_of_key(http.headers["authorization"].removeprefix("Bearer "))
    event = a_safety_event(tenant=tenant, evidence=b"canary")
    await services.chat_state.stores.audit.append([event])
    await services.chat_state.stores.appeals.open(tenant, event.id, "canary")
    return conversation

"""What lies in PostgreSQL, as one sees it who may see all rows."""

from typing import Any

import httpx
import psycopg

from api.routes.services import IngressServices
from api.state.lifecycle import ChatState
from api.state.postgres.database import Database
from tests.expected import of_kind, present

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

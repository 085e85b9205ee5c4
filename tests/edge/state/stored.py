"""What lies in PostgreSQL, as one sees it who may see all rows."""

from typing import Any

import psycopg

TEXTS = {
    "conversations": ("title",),
    "items": ("body",),
    "responses": ("body", "asked", "outcome"),
    "response_events": ("events",),
    "chat_completions": ("body", "messages"),
    "feedback": ("comment",),
}
"""The sealed columns of each table."""


def rows(url: str, query: str, values: Any = None, tenant: str = "*") -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT set_config('app.tenant_id', %s, false)", [tenant])
        done = connection.execute(query, values)
        return done.fetchall() if done.description else []


def num_bytes(url: str) -> int:
    """Of all sealed texts."""
    return sum(
        rows(url, f"SELECT coalesce(sum(octet_length({column})), 0) FROM {table}")[0][0]  # type: ignore[arg-type]
        for table, columns in TEXTS.items()
        for column in columns
    )

"""The tables with texts of tenants, and with what belongs to them."""

from typing import LiteralString, NamedTuple


class SealedTable(NamedTuple):
    name: LiteralString
    columns: tuple[LiteralString, ...]
    """That are sealed, all of a row with one key."""
    key_version: LiteralString = "key_version"
    place: LiteralString = "r.id"
    """Between the table and the column, in what a text is sealed for."""
    is_open: LiteralString = "true"
    """Whether nobody else is about to seal something for this row."""


_IS_OVER: LiteralString = (
    "NOT EXISTS (SELECT FROM responses x WHERE x.tenant_id = r.tenant_id AND x.id = r.response_id \
AND x.status IN ('queued', 'in_progress'))"
)

SEALED_TABLES = (
    SealedTable("conversations", ("title",), "title_key_version"),
    SealedTable("items", ("body",)),
    SealedTable("response_events", ("events",), place="r.response_id || '/' || r.first_number", is_open=_IS_OVER),
    SealedTable("responses", ("body", "asked", "outcome"), is_open="r.status NOT IN ('queued', 'in_progress')"),
    SealedTable("chat_completions", ("body", "messages")),
    SealedTable("feedback", ("comment",)),
)

TABLES: tuple[LiteralString, ...] = (
    "feedback",
    "chat_completions",
    "item_words",
    "items",
    "response_events",
    "responses",
    "conversations",
    "tenant_bytes",
)
"""With rows of a tenant, but for its name and the versions of its keys. In this order none refers to one before."""

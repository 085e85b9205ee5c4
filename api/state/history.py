"""What a turn follows, as PostgreSQL holds it."""

from typing import Any, NamedTuple

from psycopg.rows import DictRow

from api.state.compactions import opened
from api.state.conversations import found_conversation
from api.state.database import Transaction, fetch_all, fetch_one
from api.state.items import Coverage, Item, unsealed
from api.state.queries import queries
from api.state.sealing import TenantKeys
from cluster.errors import Conflict, NotFound

_SQL = queries("history.sql")


class StoredSummary(NamedTuple):
    coverage: Coverage
    after: int
    """How many items there were when it came."""
    text: str


class History(NamedTuple):
    items: list[Item]
    """The oldest first, without the summaries that Baton made. A client's compaction has its `summary`."""
    memories: dict[str, list[str]]
    """Ids of the items that a turn was reminded of, by the id of its last message from the user."""
    summaries: list[StoredSummary]


async def history_of(
    transaction: Transaction, keys: TenantKeys, tenant: str, conversation: str | None, previous: str | None
) -> History:
    """
    Raises:
        NotFound: no such conversation or previous response.
        Conflict: the previous response is being generated.
    """
    if conversation is not None:
        await found_conversation(transaction, tenant, conversation)
        query, values = _SQL["of_conversation"], {"conversation": conversation}
    elif previous is not None:
        found = await fetch_one(transaction, _SQL["status"], tenant=tenant, id=previous)
        if found is None:
            raise NotFound(f"no response with id '{previous}'", "previous_response_id", "previous_response_not_found")
        if found["status"] in ("queued", "in_progress"):
            raise Conflict(
                f"response '{previous}' is still being generated",
                "previous_response_id",
                "previous_response_in_progress",
            )
        query, values = _SQL["up_to"], {"id": previous}
    else:
        return History([], {}, [])
    rows = await fetch_all(transaction, query, tenant=tenant, **values)
    items = await opened(transaction, keys, tenant, await unsealed(await keys.of_rows(transaction, tenant, rows), rows))
    return _history(rows, items)


def _history(rows: list[DictRow], all_items: list[dict[str, Any]]) -> History:
    items: list[Item] = []
    summaries: list[StoredSummary] = []
    memories: dict[str, tuple[str, list[str]]] = {}
    for row, item in zip(rows, all_items, strict=True):
        if row["covers"] is not None:
            coverage = Coverage(row["covers_through"], row["covers"])
            summaries.append(StoredSummary(coverage, len(items), item["summary"]))
            continue
        items.append(item)
        if row["asked_by"] is not None and row["memory"]:
            memories[row["asked_by"]] = item["id"], row["memory"]
    return History(items, dict(memories.values()), summaries)

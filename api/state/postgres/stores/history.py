"""What a turn follows, as PostgreSQL holds it."""

from typing import Any, NamedTuple

from psycopg.rows import DictRow

from api.state.encryption.tenant_keys import TenantKeys
from api.state.postgres.database import Transaction, fetch_all, fetch_one
from api.state.postgres.queries import queries
from api.state.postgres.stores.compactions import opened
from api.state.postgres.stores.conversations import found_conversation
from api.state.postgres.stores.history_space import HeldHistory, HistorySpace
from api.state.postgres.stores.items import Coverage, Item, Limits, unsealed
from cluster.errors import Conflict, InvalidRequest, NotFound

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
    held: HeldHistory | None = None
    """The memory that it takes."""


NOTHING = History([], {}, [])


class Histories:
    def __init__(self, keys: TenantKeys, limits: Limits, space: HistorySpace) -> None:
        self._keys = keys
        self._limits = limits
        self._space = space

    async def of(
        self, transaction: Transaction, tenant: str, conversation: str | None, previous: str | None
    ) -> History:
        """
        Raises:
            NotFound: no such conversation or previous response.
            Conflict: the previous response is being generated.
            InvalidRequest: the previous response follows more than a conversation may have.
            TooManyRequests, Overloaded: there is no room for it in memory now.
        """
        if conversation is not None:
            await found_conversation(transaction, tenant, conversation)
            sizes = await fetch_all(transaction, _SQL["of_conversation"], tenant=tenant, conversation=conversation)
        elif previous is not None:
            await _require_over(transaction, tenant, previous)
            most = self._limits.conversation_items
            sizes = await fetch_all(transaction, _SQL["up_to"], tenant=tenant, id=previous, most=most)
            self._check_length(previous, sizes)
        else:
            return NOTHING
        held = self._space.hold(tenant, sum(row["num_bytes"] for row in sizes))
        rows = await fetch_all(transaction, _SQL["items"], tenant=tenant, ids=[row["id"] for row in sizes])
        items = await unsealed(await self._keys.of_rows(transaction, tenant, rows), rows)
        return _history(rows, await opened(transaction, self._keys, tenant, items), held)

    def _check_length(self, previous: str, sizes: list[DictRow]) -> None:
        """The answer to a turn is stored even if it exceeds what may be stored: it is no reason to refuse the next."""
        most, most_bytes = self._limits.conversation_items, self._limits.conversation_bytes
        asked = [row["num_bytes"] for row in sizes if not row["is_answer"]]
        if len(asked) > most or len(sizes) > 2 * most or sum(asked) > most_bytes:
            raise InvalidRequest(
                f"response '{previous}' follows too much: a turn may follow {most} items and {most_bytes} bytes. Begin "
                "anew with a part of it, or with what POST /v1/responses/compact makes of it",
                "previous_response_id",
                "conversation_full",
            )


async def _require_over(transaction: Transaction, tenant: str, previous: str) -> None:
    found = await fetch_one(transaction, _SQL["status"], tenant=tenant, id=previous)
    if found is None:
        raise NotFound(f"no response with id '{previous}'", "previous_response_id", "previous_response_not_found")
    if found["status"] in ("queued", "in_progress"):
        raise Conflict(
            f"response '{previous}' is still being generated",
            "previous_response_id",
            "previous_response_in_progress",
        )


def _history(rows: list[DictRow], all_items: list[dict[str, Any]], held: HeldHistory) -> History:
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
    return History(items, dict(memories.values()), summaries, held)

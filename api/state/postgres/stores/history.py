"""The history of a turn: the stored items that the turn follows, with their summaries."""

from typing import Any, NamedTuple

from api.state.postgres.database import Row
from api.state.postgres.queries import queries
from api.state.postgres.stores.compactions import opened
from api.state.postgres.stores.conversations import found_conversation
from api.state.postgres.stores.history_space import HeldHistory, HistorySpace
from api.state.postgres.stores.items import Coverage, Item, ItemLimits, unsealed
from api.state.postgres.tenant_transaction import TenantTransaction
from cluster.errors import Conflict, InvalidRequest, NotFound

_SQL = queries("history.sql")


class StoredSummary(NamedTuple):
    coverage: Coverage
    after: int
    """The number of items in the conversation when the summary was stored."""
    text: str


class History(NamedTuple):
    items: list[Item]
    """The items, the oldest first, without the summaries that Baton made. A client's compaction has its `summary`."""
    memories: dict[str, list[str]]
    """The ids of the items that a turn was reminded of, by the id of the turn's last message from the user."""
    summaries: list[StoredSummary]
    held: HeldHistory | None = None
    """The memory that the items take. It is given back when the history is garbage-collected."""


NOTHING = History([], {}, [])


class Histories:
    def __init__(self, limits: ItemLimits, space: HistorySpace) -> None:
        self._limits = limits
        self._space = space

    async def of(self, transaction: TenantTransaction, conversation: str | None, previous: str | None) -> History:
        """The history of a turn in a conversation, or after a previous response.

        Raises:
            NotFound: no such conversation or previous response.
            Conflict: the previous response is being generated.
            InvalidRequest: the previous response follows more than a conversation may have.
            TooManyRequests, Overloaded: the replica has no memory for the history now.
        """
        if conversation is not None:
            await found_conversation(transaction, conversation)
            sizes = await transaction.fetch_all(_SQL["of_conversation"], conversation=conversation)
        elif previous is not None:
            await _require_over(transaction, previous)
            sizes = await transaction.fetch_all(_SQL["up_to"], id=previous, most=self._limits.conversation_items)
            self._check_length(previous, sizes)
        else:
            return NOTHING
        held = self._space.hold(transaction.tenant, sum(row["num_bytes"] for row in sizes))
        rows = await transaction.fetch_all(_SQL["items"], ids=[row["id"] for row in sizes])
        items = await unsealed(await transaction.keys_of(rows), rows)
        return _history(rows, await opened(transaction, items), held)

    def _check_length(self, previous: str, sizes: list[Row]) -> None:
        """Answers do not count toward the bytes, and only at double the limit toward the items: an answer is stored
        even beyond the limits, and must not make the next turn impossible.
        """
        most, most_bytes = self._limits.conversation_items, self._limits.conversation_bytes
        asked = [row["num_bytes"] for row in sizes if not row["is_answer"]]
        if len(asked) > most or len(sizes) > 2 * most or sum(asked) > most_bytes:
            raise InvalidRequest(
                f"the history of response '{previous}' is too long: a turn may follow {most} items and {most_bytes} "
                "bytes. Begin anew with a part of the history, or with its compaction by POST /v1/responses/compact",
                "previous_response_id",
                "conversation_full",
            )


async def _require_over(transaction: TenantTransaction, previous: str) -> None:
    found = await transaction.fetch_one(_SQL["status"], id=previous)
    if found is None:
        raise NotFound(f"no response with id '{previous}'", "previous_response_id", "previous_response_not_found")
    if found["status"] in ("queued", "in_progress"):
        raise Conflict(
            f"response '{previous}' is still being generated",
            "previous_response_id",
            "previous_response_in_progress",
        )


def _history(rows: list[Row], all_items: list[dict[str, Any]], held: HeldHistory) -> History:
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

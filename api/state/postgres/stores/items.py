"""Items in PostgreSQL: sealed, and ordered within their conversation and their response."""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

import msgspec

from api.state.encryption.tenant_keys import TenantKey
from api.state.postgres.database import Row
from api.state.postgres.queries import queries
from api.state.postgres.tenant_transaction import TenantTransaction
from cluster.errors import InvalidRequest, NotFound

MANY, LARGE_BYTES = 200, 1 << 20
"""The number of items, and of their bytes, above which a thread encodes and seals them. Fewer pays for a thread more
often; more keeps the event loop from other requests for longer.
"""
ROW_BYTES = 500
"""The bytes that a row counts toward the quota beside its texts. It equals baton_row_bytes of migration 8."""
MAX_REFERRED_BYTES = 32 << 20
"""The bytes of stored items that one request may refer to: about the size of the largest request body. More takes
memory of the replica; less refuses requests with long references.
"""

Made = TypeVar("Made")
Item = dict[str, Any]
"""An item as the API shows it, with its id, type and status."""

_SQL = queries("items.sql")
_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "compaction": "cmp",
}


class ItemLimits(NamedTuple):
    """The most that clients may store in one item and in one conversation."""

    item_bytes: int
    conversation_items: int
    conversation_bytes: int


class Packed(NamedTuple):
    """Items with their ids, and each of them as JSON that is ready to be sealed."""

    items: list[Item]
    texts: list[bytes]

    @property
    def num_bytes(self) -> int:
        """The bytes that the stored items count toward the quota."""
        return sum(map(len, self.texts)) + ROW_BYTES * len(self.texts)


class Coverage(NamedTuple):
    """The items that a summary stands for: the first `number` items of the conversation."""

    through: str
    """The id of the last of them."""
    number: int


class StoredTurn(NamedTuple):
    """The response that items belong to."""

    response: str
    first_position: int
    is_output: bool


def new_id(prefix: str) -> str:
    return f"{prefix}_{uuid4().hex}"


def with_ids(items: list[Item]) -> list[Item]:
    """The items with new ids, which replace the ids that a client may have given."""
    return [{**item, "id": new_id(_PREFIXES.get(item["type"], "item"))} for item in items]


def refers(items: list[Item]) -> bool:
    """Whether one of the items is a reference to a stored item."""
    return any(item["type"] == "item_reference" for item in items)


async def referred(transaction: TenantTransaction, items: list[Item], param: str) -> list[Item]:
    """The items, with each reference replaced by the stored item. `param`: the parameter of the request that has them.

    Raises:
        NotFound: the tenant has no such item, or has deleted it.
        InvalidRequest: the stored items are too large together.
    """
    ids = [item["id"] for item in items if item["type"] == "item_reference"]
    if not ids:
        return items
    total = await transaction.fetch_one(_SQL["size"], ids=ids)
    if total is not None and total["size"] > MAX_REFERRED_BYTES:
        raise InvalidRequest(
            f"the items that the request refers to have more than {MAX_REFERRED_BYTES} bytes",
            param,
            "string_above_max_length",
        )
    rows = await transaction.fetch_all(_SQL["by_id"], ids=ids)
    found = {item["id"]: item for item in await unsealed(await transaction.keys_of(rows), rows)}
    for name in ids:
        if name not in found:
            raise NotFound(f"Item with id '{name}' not found.", param, "item_not_found")
    return [found[item["id"]] if item["type"] == "item_reference" else item for item in items]


async def packed(items: list[Item], param: str, limits: ItemLimits | None = None) -> Packed:
    """Items with ids, encoded. `param`: the parameter of the request that has them. Raises InvalidRequest for an item
    that is larger than `limits` allow.
    """
    texts = await aside(
        len(items), sum(map(_rough_bytes, items)), lambda: [msgspec.json.encode(item) for item in items]
    )
    for number, text in enumerate(texts):
        if limits is not None and len(text) > limits.item_bytes:
            raise too_large(f"{param}[{number}]", len(text), limits.item_bytes)
    return Packed(items, texts)


def too_large(param: str, num_bytes: int, most: int) -> InvalidRequest:
    return InvalidRequest(f"{param} has {num_bytes} bytes, and may have {most}", param, "string_above_max_length")


async def append(
    transaction: TenantTransaction,
    key: TenantKey,
    added: Packed,
    *,
    conversation: str | None = None,
    turn: StoredTurn | None = None,
    coverage: Coverage | None = None,
    limits: ItemLimits | None = None,
) -> None:
    """Append items to a conversation, to a response, or to both. `coverage`: what the item stands for if it is a
    summary. `limits`: None for items that are stored even in a full conversation. Raises NotFound, InvalidRequest.
    """
    items = added.items
    places = [_place(item["id"]) for item in items]
    sealed = zip(added.texts, places, strict=True)
    bodies = await aside(len(items), added.num_bytes, lambda: [key.seal(text, place) for text, place in sealed])
    first_seq = None
    if conversation is not None:
        first_seq = await _reserve(transaction, conversation, bodies, limits)
    if not items:
        return
    values = {
        "ids": [item["id"] for item in items],
        "conversation": conversation,
        "first_seq": first_seq,
        "response": turn.response if turn else None,
        "first_position": turn.first_position if turn else None,
        "is_output": turn is not None and turn.is_output,
        "types": [item["type"] for item in items],
        "roles": [item["role"] if item["type"] == "message" else None for item in items],
        "statuses": [item["status"] for item in items],
        "bodies": bodies,
        "key_version": key.version,
        "covers_through": coverage.through if coverage else None,
        "covers": coverage.number if coverage else None,
    }
    await transaction.execute(_SQL["add"], **values)


async def unsealed(keys: dict[int, TenantKey], rows: list[Row]) -> list[Item]:
    """The items of these rows. `keys`: the keys of the rows, by version."""
    num_bytes = sum(len(row["body"]) for row in rows)
    return await aside(len(rows), num_bytes, lambda: [_unsealed(keys[row["key_version"]], row) for row in rows])


def no_conversation(conversation: str) -> NotFound:
    return NotFound(f"no conversation with id '{conversation}'", "conversation_id", "conversation_not_found")


async def _reserve(
    transaction: TenantTransaction, conversation: str, bodies: list[bytes], limits: ItemLimits | None
) -> int:
    """The place of the first of these items in the conversation. A conversation without room for one more item counts
    as full even if no item is to be added: the answer to the turn would not fit.
    """
    number = len(bodies)
    values = {"number": number, "bytes": sum(map(len, bodies))}
    row = await transaction.fetch_one(_SQL["reserve_seqs"], id=conversation, **values)
    if row is None:
        raise no_conversation(conversation)
    if limits is None:
        return int(row["first_seq"])
    if row["bytes"] > limits.conversation_bytes:
        raise _full(conversation, f"{limits.conversation_bytes} bytes")
    wanted, most = max(1, number), limits.conversation_items
    if row["first_seq"] - 1 + wanted > most:  # places are never used again, so deleted items count here too
        counted = await transaction.fetch_one(_SQL["number"], id=conversation, limit=most)
        if counted is not None and counted["number"] + wanted > most:
            raise _full(conversation, f"{most} items")
    return int(row["first_seq"])


def _full(conversation: str, most: str) -> InvalidRequest:
    return InvalidRequest(
        f"conversation '{conversation}' is full: a conversation may have {most}. Begin another conversation, or delete "
        "items of this one",
        "conversation",
        "conversation_full",
    )


async def aside(number: int, num_bytes: int, work: Callable[[], Made]) -> Made:
    """The result of `work`, which runs in a thread if it takes long, so that other requests go on meanwhile."""
    return await asyncio.to_thread(work) if number > MANY or num_bytes > LARGE_BYTES else work()


def _rough_bytes(item: Item) -> int:
    """An estimate of the bytes of an item: the characters of its texts, two levels deep."""
    fields = [value for value in item.values() if isinstance(value, str)]
    parts = [part for value in item.values() if isinstance(value, list) for part in value if isinstance(part, dict)]
    return sum(map(len, fields)) + sum(
        len(value) for part in parts for value in part.values() if isinstance(value, str)
    )


def _unsealed(key: TenantKey, row: Row) -> Item:
    item: Item = msgspec.json.decode(key.unseal(row["body"], _place(row["id"])))
    return item | {"id": row["id"], "status": row["status"]}


def _place(item: str) -> str:
    return f"items/{item}/body"

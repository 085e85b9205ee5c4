"""Items in PostgreSQL: sealed, and in order within their conversation and their response."""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

import msgspec
from psycopg.rows import DictRow

from api.state.encryption.tenant_keys import TenantKey, TenantKeys
from api.state.postgres.database import Transaction, fetch_all, fetch_one
from api.state.postgres.queries import queries
from cluster.errors import InvalidRequest, NotFound

MANY, LARGE_BYTES = 200, 1 << 20
"""Items, and bytes of them, that take the event loop too long: a thread reads and writes them."""
ROW_BYTES = 500
"""That an item counts beside its own (baton_row_bytes of migration 8)."""
MAX_REFERRED_BYTES = 32 << 20
"""That a request may refer to: about as much as one may have of its own."""

Made = TypeVar("Made")
Item = dict[str, Any]
"""As the wire has it, with its id, type and status."""

_SQL = queries("items.sql")
_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "compaction": "cmp",
}


class Limits(NamedTuple):
    """Of what clients may store."""

    item_bytes: int
    conversation_items: int
    conversation_bytes: int


class Packed(NamedTuple):
    """Items, ready to be sealed."""

    items: list[Item]
    """With ids."""
    texts: list[bytes]
    """Each as JSON."""

    @property
    def num_bytes(self) -> int:
        """That they take when they are stored."""
        return sum(map(len, self.texts)) + ROW_BYTES * len(self.texts)


class Coverage(NamedTuple):
    """What a summary stands for: the items up to one."""

    through: str
    number: int


class StoredTurn(NamedTuple):
    """The response that items belong to."""

    response: str
    first_position: int
    is_output: bool


def new_id(prefix: str) -> str:
    return f"{prefix}_{uuid4().hex}"


def with_ids(items: list[Item]) -> list[Item]:
    """New ones, whatever the items were called before."""
    return [{**item, "id": new_id(_PREFIXES.get(item["type"], "item"))} for item in items]


def refers(items: list[Item]) -> bool:
    """Whether some of them are references to others."""
    return any(item["type"] == "item_reference" for item in items)


async def referred(
    transaction: Transaction, keys: TenantKeys, tenant: str, items: list[Item], param: str
) -> list[Item]:
    """The items with those that they refer to in the place of references. `param`: where a client has them.

    Raises:
        NotFound: the tenant has no such item, or has deleted it.
        InvalidRequest: they are too large.
    """
    ids = [item["id"] for item in items if item["type"] == "item_reference"]
    if not ids:
        return items
    all_of_them = await fetch_one(transaction, _SQL["size"], tenant=tenant, ids=ids)
    if all_of_them is not None and all_of_them["size"] > MAX_REFERRED_BYTES:
        raise InvalidRequest(
            f"the items that are referred to have more than {MAX_REFERRED_BYTES} bytes",
            param,
            "string_above_max_length",
        )
    rows = await fetch_all(transaction, _SQL["by_id"], tenant=tenant, ids=ids)
    found = {item["id"]: item for item in await unsealed(await keys.of_rows(transaction, tenant, rows), rows)}
    for name in ids:
        if name not in found:
            raise NotFound(f"Item with id '{name}' not found.", param, "item_not_found")
    return [found[item["id"]] if item["type"] == "item_reference" else item for item in items]


async def packed(items: list[Item], param: str, limits: Limits | None = None) -> Packed:
    """Items with ids. `param`: where a client has them. Raises InvalidRequest for one that is too large."""
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
    transaction: Transaction,
    key: TenantKey,
    added: Packed,
    *,
    conversation: str | None = None,
    turn: StoredTurn | None = None,
    coverage: Coverage | None = None,
    limits: Limits | None = None,
) -> None:
    """To a conversation, a response, or both. `coverage`: of a summary. `limits`: None for what is taken in any case.
    Raises NotFound, InvalidRequest.
    """
    items = added.items
    places = [_place(item["id"]) for item in items]
    sealed = zip(added.texts, places, strict=True)
    bodies = await aside(len(items), added.num_bytes, lambda: [key.seal(text, place) for text, place in sealed])
    first_seq = None
    if conversation is not None:
        first_seq = await _reserve(transaction, key.tenant, conversation, bodies, limits)
    if not items:
        return
    values = {
        "tenant": key.tenant,
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
    await transaction.execute(_SQL["add"], values)


async def unsealed(keys: dict[int, TenantKey], rows: list[DictRow]) -> list[Item]:
    """`keys`: of the rows."""
    num_bytes = sum(len(row["body"]) for row in rows)
    return await aside(len(rows), num_bytes, lambda: [_unsealed(keys[row["key_version"]], row) for row in rows])


def no_conversation(conversation: str) -> NotFound:
    return NotFound(f"no conversation with id '{conversation}'", "conversation_id", "conversation_not_found")


async def _reserve(
    transaction: Transaction, tenant: str, conversation: str, bodies: list[bytes], limits: Limits | None
) -> int:
    """A conversation that has no room for one more is full even for none."""
    number = len(bodies)
    values = {"number": number, "bytes": sum(map(len, bodies))}
    row = await fetch_one(transaction, _SQL["reserve_seqs"], tenant=tenant, id=conversation, **values)
    if row is None:
        raise no_conversation(conversation)
    if limits is None:
        return int(row["first_seq"])
    if row["bytes"] > limits.conversation_bytes:
        raise _full(conversation, f"{limits.conversation_bytes} bytes")
    wanted, most = max(1, number), limits.conversation_items
    if row["first_seq"] - 1 + wanted > most:  # so many there have been; not all of them need be there
        counted = await fetch_one(transaction, _SQL["number"], tenant=tenant, id=conversation, limit=most)
        if counted is not None and counted["number"] + wanted > most:
            raise _full(conversation, f"{most} items")
    return int(row["first_seq"])


def _full(conversation: str, most: str) -> InvalidRequest:
    return InvalidRequest(
        f"conversation '{conversation}' is full: it may have {most}. Begin another one, or delete some",
        "conversation",
        "conversation_full",
    )


async def aside(number: int, num_bytes: int, work: Callable[[], Made]) -> Made:
    """In a thread, where there is much to do: other requests go on meanwhile."""
    return await asyncio.to_thread(work) if number > MANY or num_bytes > LARGE_BYTES else work()


def _rough_bytes(item: Item) -> int:
    """Of its longest texts, nearly."""
    fields = [value for value in item.values() if isinstance(value, str)]
    parts = [part for value in item.values() if isinstance(value, list) for part in value if isinstance(part, dict)]
    return sum(map(len, fields)) + sum(
        len(value) for part in parts for value in part.values() if isinstance(value, str)
    )


def _unsealed(key: TenantKey, row: DictRow) -> Item:
    item: Item = msgspec.json.decode(key.unseal(row["body"], _place(row["id"])))
    return item | {"id": row["id"], "status": row["status"]}


def _place(item: str) -> str:
    return f"items/{item}/body"

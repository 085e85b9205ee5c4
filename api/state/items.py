"""Items in PostgreSQL: sealed, and in order within their conversation and their response."""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

import msgspec
from psycopg.rows import DictRow

from api.state.database import Transaction, fetch_all, fetch_one
from api.state.queries import queries
from api.state.sealing import TenantKey, TenantKeys
from cluster.errors import InvalidRequest, NotFound

MANY = 200
"""Items that take the event loop too long."""
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


class Coverage(NamedTuple):
    """What a summary stands for: the items up to one."""

    through: str
    number: int


class Turn(NamedTuple):
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
    found = {item["id"]: item for item in await unsealed(transaction, keys, tenant, rows)}
    for name in ids:
        if name not in found:
            raise NotFound(f"Item with id '{name}' not found.", param, "item_not_found")
    return [found[item["id"]] if item["type"] == "item_reference" else item for item in items]


async def append(
    transaction: Transaction,
    key: TenantKey,
    items: list[Item],
    *,
    conversation: str | None = None,
    turn: Turn | None = None,
    coverage: Coverage | None = None,
    most: int | None = None,
) -> list[Item]:
    """To a conversation, a response, or both. `coverage`: of a summary. `most`: that the conversation may have. Raises
    NotFound, InvalidRequest.
    """
    first_seq = None
    if conversation is not None:
        first_seq = await _reserve(transaction, key.tenant, conversation, len(items), most)
    if not items:
        return items
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
        "bodies": await aside(len(items), lambda: [_sealed(key, item) for item in items]),
        "key_version": key.version,
        "covers_through": coverage.through if coverage else None,
        "covers": coverage.number if coverage else None,
    }
    await transaction.execute(_SQL["add"], values)
    return items


async def unsealed(transaction: Transaction, keys: TenantKeys, tenant: str, rows: list[DictRow]) -> list[Item]:
    by_version = await keys.of_rows(transaction, tenant, rows)
    return await aside(len(rows), lambda: [_unsealed(by_version[row["key_version"]], row) for row in rows])


def no_conversation(conversation: str) -> NotFound:
    return NotFound(f"no conversation with id '{conversation}'", "conversation_id", "conversation_not_found")


async def _reserve(transaction: Transaction, tenant: str, conversation: str, number: int, most: int | None) -> int:
    """A conversation that has no room for one more is full even for none."""
    row = await fetch_one(transaction, _SQL["reserve_seqs"], tenant=tenant, id=conversation, number=number)
    if row is None:
        raise no_conversation(conversation)
    (first,) = row.values()
    wanted = max(1, number)
    if most is not None and first - 1 + wanted > most:  # so many there have been; not all of them need be there
        counted = await fetch_one(transaction, _SQL["number"], tenant=tenant, id=conversation, limit=most)
        if counted is not None and counted["number"] + wanted > most:
            raise _full(conversation, most)
    return int(first)


def _full(conversation: str, most: int) -> InvalidRequest:
    return InvalidRequest(
        f"conversation '{conversation}' is full: it may have {most} items. Begin another one, or delete some",
        "conversation",
        "conversation_full",
    )


async def aside(number: int, work: Callable[[], list[Made]]) -> list[Made]:
    """In a thread, where there is much to do: other requests go on meanwhile."""
    return await asyncio.to_thread(work) if number > MANY else work()


def _sealed(key: TenantKey, item: Item) -> bytes:
    return key.seal(msgspec.json.encode(item), _place(item["id"]))


def _unsealed(key: TenantKey, row: DictRow) -> Item:
    item: Item = msgspec.json.decode(key.unseal(row["body"], _place(row["id"])))
    return item | {"id": row["id"], "status": row["status"]}


def _place(item: str) -> str:
    return f"items/{item}/body"

"""Items in PostgreSQL: sealed, and in order within their conversation and their response."""

from typing import Any, NamedTuple
from uuid import uuid4

import msgspec
from psycopg.rows import DictRow

from api.state.database import Transaction, fetch_one
from api.state.queries import queries
from api.state.sealing import TenantKey, TenantKeys
from cluster.errors import NotFound

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


async def append(
    transaction: Transaction,
    key: TenantKey,
    items: list[Item],
    *,
    conversation: str | None = None,
    turn: Turn | None = None,
) -> list[Item]:
    """To a conversation, a response, or both. Raises NotFound."""
    first_seq = None if conversation is None else await _reserve(transaction, key.tenant, conversation, len(items))
    for number, item in enumerate(items):
        values = {
            "tenant": key.tenant,
            "id": item["id"],
            "conversation": conversation,
            "seq": None if first_seq is None else first_seq + number,
            "response": turn.response if turn else None,
            "position": turn.first_position + number if turn else None,
            "is_output": turn is not None and turn.is_output,
            "type": item["type"],
            "role": item["role"] if item["type"] == "message" else None,
            "status": item["status"],
            "body": key.seal(msgspec.json.encode(item), _place(item["id"])),
            "key_version": key.version,
        }
        await transaction.execute(_SQL["add"], values)
    return items


async def unsealed(transaction: Transaction, keys: TenantKeys, tenant: str, rows: list[DictRow]) -> list[Item]:
    versions = {row["key_version"] for row in rows}
    by_version = {version: await keys.of_version(transaction, tenant, version) for version in versions}
    return [
        msgspec.json.decode(by_version[row["key_version"]].unseal(row["body"], _place(row["id"])))
        | {"id": row["id"], "status": row["status"]}
        for row in rows
    ]


def no_conversation(conversation: str) -> NotFound:
    return NotFound(f"no conversation with id '{conversation}'", "conversation_id", "conversation_not_found")


async def _reserve(transaction: Transaction, tenant: str, conversation: str, number: int) -> int:
    row = await fetch_one(transaction, _SQL["reserve_seqs"], tenant=tenant, id=conversation, number=number)
    if row is None:
        raise no_conversation(conversation)
    (first,) = row.values()
    return int(first)


def _place(item: str) -> str:
    return f"items/{item}/body"

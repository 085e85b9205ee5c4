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


async def append(
    transaction: Transaction,
    key: TenantKey,
    items: list[Item],
    *,
    conversation: str | None = None,
    turn: Turn | None = None,
    coverage: Coverage | None = None,
) -> list[Item]:
    """To a conversation, a response, or both. `coverage`: of a summary. Raises NotFound."""
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
            "covers_through": coverage.through if coverage else None,
            "covers": coverage.number if coverage else None,
        }
        await transaction.execute(_SQL["add"], values)
    return items


async def unsealed(transaction: Transaction, keys: TenantKeys, tenant: str, rows: list[DictRow]) -> list[Item]:
    by_version = await keys.of_rows(transaction, tenant, rows)
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

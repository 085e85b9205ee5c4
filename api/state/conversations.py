"""Conversations and their items, as PostgreSQL holds them. Every look-up is within one tenant."""

from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from api.state.database import EVERY_TENANT, Database, Transaction, fetch_all, fetch_one
from api.state.queries import queries
from api.state.sealing import TenantKey, TenantKeys
from cluster.errors import NotFound

Item = dict[str, Any]
"""As the wire has it, with its id, type and status."""

PURGED_AT_ONCE = 100

_SQL = queries("conversations.sql")


class Conversation(NamedTuple):
    id: str
    created_at: datetime
    updated_at: datetime
    end_user: str | None
    metadata: dict[str, str]


class Page(NamedTuple):
    after: str | None
    """The last id of the page before."""
    limit: int
    newest_first: bool


class Conversations:
    def __init__(self, database: Database, keys: TenantKeys) -> None:
        self._database = database
        self._keys = keys

    async def create(
        self, tenant: str, metadata: dict[str, str], items: list[Item], end_user: str | None = None
    ) -> Conversation:
        async with self._database.transaction(tenant) as transaction:
            key = await self._keys.newest(transaction, tenant)
            values = {"tenant": tenant, "id": new_id("conv"), "end_user": end_user, "metadata": Jsonb(metadata)}
            row = await fetch_one(transaction, _SQL["create"], **values)
            assert row is not None
            made = _conversation(row)
            await _append(transaction, key, made.id, items)
            return made

    async def get(self, tenant: str, conversation: str) -> Conversation:
        """Raises NotFound."""
        async with self._database.transaction(tenant) as transaction:
            return await _found(transaction, tenant, conversation)

    async def update(self, tenant: str, conversation: str, metadata: dict[str, str]) -> Conversation:
        """Raises NotFound."""
        async with self._database.transaction(tenant) as transaction:
            values = {"tenant": tenant, "id": conversation, "metadata": Jsonb(metadata)}
            row = await fetch_one(transaction, _SQL["update_metadata"], **values)
            if row is None:
                raise no_conversation(conversation)
            return _conversation(row)

    async def delete(self, tenant: str, conversation: str) -> None:
        """Nobody sees it from now on; `purge` removes it. Raises NotFound."""
        async with self._database.transaction(tenant) as transaction:
            if await fetch_one(transaction, _SQL["delete"], tenant=tenant, id=conversation) is None:
                raise no_conversation(conversation)

    async def find(
        self, tenant: str, page: Page, end_user: str | None = None, metadata: dict[str, str] | None = None
    ) -> list[Conversation]:
        """By their last change; one more than the page takes, where there are more."""
        query = _SQL["list_newest_first" if page.newest_first else "list_oldest_first"]
        values = {"end_user": end_user, "metadata": Jsonb(metadata or {})}
        async with self._database.transaction(tenant) as transaction:
            rows = await fetch_all(transaction, query, tenant=tenant, after=page.after, limit=page.limit + 1, **values)
            return [_conversation(row) for row in rows]

    async def add_items(self, tenant: str, conversation: str, items: list[Item]) -> list[Item]:
        """Appended in this order. Raises NotFound."""
        async with self._database.transaction(tenant) as transaction:
            key = await self._keys.newest(transaction, tenant)
            return await _append(transaction, key, conversation, items)

    async def items(self, tenant: str, conversation: str, page: Page) -> list[Item]:
        """One more than the page takes, where there are more. Raises NotFound."""
        query = _SQL["items_newest_first" if page.newest_first else "items_oldest_first"]
        async with self._database.transaction(tenant) as transaction:
            await _found(transaction, tenant, conversation)
            rows = await fetch_all(
                transaction, query, tenant=tenant, conversation=conversation, after=page.after, limit=page.limit + 1
            )
            return await self._unsealed(transaction, tenant, rows)

    async def item(self, tenant: str, conversation: str, item: str) -> Item:
        """Raises NotFound."""
        async with self._database.transaction(tenant) as transaction:
            await _found(transaction, tenant, conversation)
            row = await fetch_one(transaction, _SQL["get_item"], tenant=tenant, conversation=conversation, id=item)
            if row is None:
                raise no_item(item)
            return (await self._unsealed(transaction, tenant, [row]))[0]

    async def delete_item(self, tenant: str, conversation: str, item: str) -> Conversation:
        """The conversation without it. Raises NotFound."""
        async with self._database.transaction(tenant) as transaction:
            found = await _found(transaction, tenant, conversation)
            values = {"tenant": tenant, "conversation": conversation, "id": item}
            if await fetch_one(transaction, _SQL["delete_item"], **values) is None:
                raise no_item(item)
            return found

    async def purge(self, older_than: timedelta) -> int:
        """Remove what was deleted so long ago; returns how many conversations."""
        number = 0
        while True:
            async with self._database.transaction(EVERY_TENANT) as transaction:
                gone = await fetch_all(transaction, _SQL["purge"], keep=older_than, limit=PURGED_AT_ONCE)
            number += len(gone)
            if len(gone) < PURGED_AT_ONCE:
                return number

    async def _unsealed(self, transaction: Transaction, tenant: str, rows: list[DictRow]) -> list[Item]:
        versions = {row["key_version"] for row in rows}
        keys = {version: await self._keys.of_version(transaction, tenant, version) for version in versions}
        return [
            msgspec.json.decode(keys[row["key_version"]].unseal(row["body"], _place(row["id"])))
            | {"id": row["id"], "status": row["status"]}
            for row in rows
        ]


def new_id(prefix: str) -> str:
    return f"{prefix}_{uuid4().hex}"


def no_conversation(conversation: str) -> NotFound:
    return NotFound(f"no conversation with id '{conversation}'", "conversation_id", "conversation_not_found")


def no_item(item: str) -> NotFound:
    return NotFound(f"no item with id '{item}' in this conversation", "item_id", "item_not_found")


async def _found(transaction: Transaction, tenant: str, conversation: str) -> Conversation:
    row = await fetch_one(transaction, _SQL["get"], tenant=tenant, id=conversation)
    if row is None:
        raise no_conversation(conversation)
    return _conversation(row)


async def _append(transaction: Transaction, key: TenantKey, conversation: str, items: list[Item]) -> list[Item]:
    values = {"tenant": key.tenant, "id": conversation, "number": len(items)}
    row = await fetch_one(transaction, _SQL["reserve_seqs"], **values)
    if row is None:
        raise no_conversation(conversation)
    (first,) = row.values()
    stored = [{**item, "id": new_id(_PREFIXES.get(item["type"], "item"))} for item in items]
    for seq, item in enumerate(stored, first):
        await transaction.execute(
            _SQL["add_item"],
            {
                "tenant": key.tenant,
                "id": item["id"],
                "conversation": conversation,
                "seq": seq,
                "type": item["type"],
                "role": item.get("role"),
                "status": item.get("status", "completed"),
                "body": key.seal(msgspec.json.encode(item), _place(item["id"])),
                "key_version": key.version,
            },
        )
    return stored


def _place(item: str) -> str:
    return f"items/{item}/body"


def _conversation(row: DictRow) -> Conversation:
    return Conversation(row["id"], row["created_at"], row["updated_at"], row["end_user"], row["metadata"])


_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "compaction": "cmp",
}

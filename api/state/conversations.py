"""Conversations and their items, as PostgreSQL holds them. Every look-up is within one tenant."""

from datetime import datetime, timedelta
from typing import NamedTuple

from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from api.state.database import EVERY_TENANT, Database, Transaction, fetch_all, fetch_one
from api.state.items import Item, append, new_id, no_conversation, unsealed, with_ids
from api.state.queries import queries
from api.state.sealing import TenantKeys
from cluster.errors import NotFound

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
            await append(transaction, key, with_ids(items), conversation=made.id)
            return made

    async def get(self, tenant: str, conversation: str) -> Conversation:
        """Raises NotFound."""
        async with self._database.transaction(tenant) as transaction:
            return await found_conversation(transaction, tenant, conversation)

    async def update(self, tenant: str, conversation: str, metadata: dict[str, str]) -> Conversation:
        """Raises NotFound."""
        async with self._database.transaction(tenant) as transaction:
            values = {"tenant": tenant, "id": conversation, "metadata": Jsonb(metadata)}
            row = await fetch_one(transaction, _SQL["update_metadata"], **values)
            if row is None:
                raise no_conversation(conversation)
            return _conversation(row)

    async def delete(self, tenant: str, conversation: str) -> list[str]:
        """Nobody sees it from now on; `purge` removes it. The responses that are gone with it. Raises NotFound."""
        async with self._database.transaction(tenant) as transaction:
            if await fetch_one(transaction, _SQL["delete"], tenant=tenant, id=conversation) is None:
                raise no_conversation(conversation)
            rows = await fetch_all(transaction, _SQL["delete_responses"], tenant=tenant, id=conversation)
            return [row["id"] for row in rows]

    async def find(
        self, tenant: str, page: Page, end_user: str | None = None, metadata: dict[str, str] | None = None
    ) -> list[Conversation]:
        """By their last change; one more than the page takes, where there are more."""
        query = _SQL["list_newest_first" if page.newest_first else "list_oldest_first"]
        values = {"end_user": end_user, "metadata": Jsonb(metadata or {})}
        async with self._database.transaction(tenant) as transaction:
            rows = await fetch_all(transaction, query, tenant=tenant, after=page.after, limit=page.limit + 1, **values)
            if not rows and page.after:
                await found_conversation(transaction, tenant, page.after)
            return [_conversation(row) for row in rows]

    async def add_items(self, tenant: str, conversation: str, items: list[Item]) -> list[Item]:
        """Appended in this order. Raises NotFound."""
        async with self._database.transaction(tenant) as transaction:
            key = await self._keys.newest(transaction, tenant)
            return await append(transaction, key, with_ids(items), conversation=conversation)

    async def items(self, tenant: str, conversation: str, page: Page) -> list[Item]:
        """One more than the page takes, where there are more. Raises NotFound."""
        query = _SQL["items_newest_first" if page.newest_first else "items_oldest_first"]
        async with self._database.transaction(tenant) as transaction:
            await found_conversation(transaction, tenant, conversation)
            rows = await fetch_all(
                transaction, query, tenant=tenant, conversation=conversation, after=page.after, limit=page.limit + 1
            )
            if not rows and page.after:
                values = {"tenant": tenant, "conversation": conversation, "id": page.after}
                if await fetch_one(transaction, _SQL["get_item"], **values) is None:
                    raise no_item(page.after)
            return await unsealed(transaction, self._keys, tenant, rows)

    async def item(self, tenant: str, conversation: str, item: str) -> Item:
        """Raises NotFound."""
        async with self._database.transaction(tenant) as transaction:
            await found_conversation(transaction, tenant, conversation)
            row = await fetch_one(transaction, _SQL["get_item"], tenant=tenant, conversation=conversation, id=item)
            if row is None:
                raise no_item(item)
            return (await unsealed(transaction, self._keys, tenant, [row]))[0]

    async def delete_item(self, tenant: str, conversation: str, item: str) -> tuple[Conversation, str | None]:
        """The conversation without it, and the response that it was part of. Raises NotFound."""
        async with self._database.transaction(tenant) as transaction:
            found = await found_conversation(transaction, tenant, conversation)
            values = {"tenant": tenant, "conversation": conversation, "id": item}
            row = await fetch_one(transaction, _SQL["delete_item"], **values)
            if row is None:
                raise no_item(item)
            return found, row["response_id"]

    async def purge(self, older_than: timedelta) -> int:
        """Remove what was deleted so long ago; returns how many conversations."""
        number = 0
        while True:
            async with self._database.transaction(EVERY_TENANT) as transaction:
                gone = await fetch_all(transaction, _SQL["purge"], keep=older_than, limit=PURGED_AT_ONCE)
            number += len(gone)
            if len(gone) < PURGED_AT_ONCE:
                return number


def no_item(item: str) -> NotFound:
    return NotFound(f"no item with id '{item}' in this conversation", "item_id", "item_not_found")


async def found_conversation(transaction: Transaction, tenant: str, conversation: str) -> Conversation:
    row = await fetch_one(transaction, _SQL["get"], tenant=tenant, id=conversation)
    if row is None:
        raise no_conversation(conversation)
    return _conversation(row)


def _conversation(row: DictRow) -> Conversation:
    return Conversation(row["id"], row["created_at"], row["updated_at"], row["end_user"], row["metadata"])

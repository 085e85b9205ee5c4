"""Conversations and their items, as PostgreSQL holds them. Every look-up is within one tenant."""

from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from api.state.encryption.tenant_keys import TenantKey, TenantKeys
from api.state.postgres.database import Database, Transaction, fetch_all, fetch_one
from api.state.postgres.derived import lock_of_derived
from api.state.postgres.parts import PAGE_BYTES, FoundPart, cursor_to, items_in, no_cursor, place_in
from api.state.postgres.queries import queries
from api.state.postgres.stores.compactions import opened
from api.state.postgres.stores.items import (
    ROW_BYTES,
    Item,
    Limits,
    Packed,
    append,
    new_id,
    no_conversation,
    packed,
    referred,
    refers,
    unsealed,
    with_ids,
)
from api.wire.pages import Page, Part
from cluster.errors import NotFound

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_SQL = queries("conversations.sql")


class Conversation(NamedTuple):
    id: str
    created_at: datetime
    updated_at: datetime
    end_user: str | None
    metadata: dict[str, str]
    title: str | None = None


class Conversations:
    def __init__(self, database: Database, keys: TenantKeys, limits: Limits) -> None:
        self._database = database
        self._keys = keys
        self._limits = limits

    async def create(
        self,
        tenant: str,
        metadata: dict[str, str],
        items: list[Item],
        end_user: str | None = None,
        title: str | None = None,
    ) -> Conversation:
        """Raises NotFound for an item that it refers to, InvalidRequest."""
        added = await self._packed(tenant, items)
        adds = added.num_bytes + ROW_BYTES + bytes_of(metadata)
        async with self._database.transaction(tenant, adds=adds) as transaction:
            key = await self._keys.newest(transaction, tenant)
            conversation = new_id("conv")
            values = {"id": conversation, "end_user": end_user, "metadata": Jsonb(metadata)}
            values |= _sealed(title, key, conversation)
            rows = await fetch_all(transaction, _SQL["create"], tenant=tenant, **values)
            await append(transaction, key, added, conversation=conversation, limits=self._limits)
            return (await conversations_of(transaction, self._keys, tenant, rows))[0]

    async def get(self, tenant: str, conversation: str) -> Conversation:
        """Raises NotFound."""
        async with self._database.transaction(tenant) as transaction:
            return await self._found(transaction, tenant, conversation)

    async def update(
        self, tenant: str, conversation: str, metadata: dict[str, str] | None = None, title: str | None = None
    ) -> Conversation:
        """None: as it was. An empty title: none. Raises NotFound, InvalidRequest."""
        async with self._database.transaction(tenant, adds=bytes_of(metadata)) as transaction:
            key = await self._keys.newest(transaction, tenant)
            values = {
                "tenant": tenant,
                "id": conversation,
                "metadata": None if metadata is None else Jsonb(metadata),
                "changes_title": title is not None,
                **_sealed(title, key, conversation),
            }
            rows = await fetch_all(transaction, _SQL["update"], **values)
            if not rows:
                raise no_conversation(conversation)
            return (await conversations_of(transaction, self._keys, tenant, rows))[0]

    async def add_title(self, tenant: str, conversation: str, title: str, items: list[str]) -> None:
        """`items`: that it tells of. No-op where one of them is gone, and for a conversation that has a title, or is
        gone.
        """
        async with self._database.transaction(tenant) as transaction:
            key = await self._keys.newest(transaction, tenant)
            values = {"tenant": tenant, "id": conversation, "items": items, **_sealed(title, key, conversation)}
            await fetch_one(
                transaction, _SQL["lock"], tenant=tenant, conversation=conversation
            )  # no item leaves it now
            await transaction.execute(_SQL["add_title"], values)

    async def delete(self, tenant: str, conversation: str, gone: list[str]) -> None:
        """Nobody sees it from now on; the purges remove it. `gone`: gets the responses that go with it, before anybody
        knows whether they are gone. Raises NotFound.
        """
        async with self._database.transaction(tenant) as transaction:
            await transaction.execute(_SQL["lock_responses"], {"tenant": tenant, "id": conversation})
            if await fetch_one(transaction, _SQL["delete"], tenant=tenant, id=conversation) is None:
                raise no_conversation(conversation)
            rows = await fetch_all(transaction, _SQL["delete_responses"], tenant=tenant, id=conversation)
            gone += [row["id"] for row in rows]

    async def find(
        self, tenant: str, page: Page, end_user: str | None = None, metadata: dict[str, str] | None = None
    ) -> FoundPart[Conversation]:
        """By their last change. Raises InvalidRequest for the page, NotFound."""
        query = _SQL["list_newest_first" if page.newest_first else "list_oldest_first"]
        after, place = place_in(page)
        at = None if place is None else _time_of(place)
        values = {"end_user": end_user, "metadata": Jsonb(metadata or {}), "after": after, "at": at}
        async with self._database.transaction(tenant) as transaction:
            rows = await fetch_all(transaction, query, tenant=tenant, limit=page.limit + 1, **values)
            if not rows and after and place is None:
                await found_conversation(transaction, tenant, after)
            found = await conversations_of(transaction, self._keys, tenant, rows[: page.limit])
        cursor = cursor_to(found[-1].id, str(_microseconds(found[-1].updated_at))) if found else None
        return FoundPart(Part(found, len(rows) > page.limit), cursor)

    async def add_items(self, tenant: str, conversation: str, items: list[Item]) -> list[Item]:
        """Appended in this order. Raises NotFound, InvalidRequest."""
        added = await self._packed(tenant, items)
        async with self._database.transaction(tenant, adds=added.num_bytes) as transaction:
            key = await self._keys.newest(transaction, tenant)
            await append(transaction, key, added, conversation=conversation, limits=self._limits)
            return added.items

    async def items(self, tenant: str, conversation: str, page: Page) -> Part[Item]:
        """Raises NotFound."""
        query = _SQL["items_newest_first" if page.newest_first else "items_oldest_first"]
        values = {"conversation": conversation, "after": page.after, "limit": page.limit + 1, "max_bytes": PAGE_BYTES}
        async with self._database.transaction(tenant) as transaction:
            await found_conversation(transaction, tenant, conversation)
            rows = await fetch_all(transaction, query, tenant=tenant, **values)
            if not rows and page.after:
                place = {"tenant": tenant, "conversation": conversation, "id": page.after}
                if await fetch_one(transaction, _SQL["had_item"], **place) is None:
                    raise no_item(page.after)
            keys = await self._keys.of_rows(transaction, tenant, rows)
        return await items_in(page, keys, rows)

    async def item(self, tenant: str, conversation: str, item: str) -> Item:
        """Raises NotFound."""
        async with self._database.transaction(tenant) as transaction:
            await found_conversation(transaction, tenant, conversation)
            row = await fetch_one(transaction, _SQL["get_item"], tenant=tenant, conversation=conversation, id=item)
            if row is None:
                raise no_item(item)
            keys = await self._keys.of_rows(transaction, tenant, [row])
        return (await unsealed(keys, [row]))[0]

    async def delete_item(self, tenant: str, conversation: str, item: str, changed: list[str]) -> Conversation:
        """The conversation without it, and without what tells of it. `changed`: gets the response that it is part of,
        before anybody knows whether it is gone. Raises NotFound.
        """
        async with self._database.transaction(tenant, lock=lock_of_derived(tenant)) as transaction:
            await found_conversation(transaction, tenant, conversation)
            values = {"tenant": tenant, "conversation": conversation, "id": item}
            for statement in ("lock_response_of_item", "lock", "forget_in_branches"):
                await transaction.execute(_SQL[statement], values)
            row = await fetch_one(transaction, _SQL["delete_item"], **values)
            if row is None:
                raise no_item(item)
            if row["response_id"] is not None:
                changed.append(row["response_id"])
            return await self._found(transaction, tenant, conversation)

    async def _packed(self, tenant: str, items: list[Item]) -> Packed:
        """With ids, and with what they refer to. Raises NotFound, InvalidRequest."""
        if refers(items) or any(item["type"] == "compaction" for item in items):
            async with self._database.transaction(tenant) as transaction:
                items = await referred(transaction, self._keys, tenant, items, "items")
                await opened(transaction, self._keys, tenant, items)
        return await packed(with_ids(items), "items", self._limits)

    async def _found(self, transaction: Transaction, tenant: str, conversation: str) -> Conversation:
        row = await found_conversation(transaction, tenant, conversation)
        return (await conversations_of(transaction, self._keys, tenant, [row]))[0]


def no_item(item: str) -> NotFound:
    return NotFound(f"no item with id '{item}' in this conversation", "item_id", "item_not_found")


async def found_conversation(transaction: Transaction, tenant: str, conversation: str) -> DictRow:
    """Raises NotFound."""
    row = await fetch_one(transaction, _SQL["get"], tenant=tenant, id=conversation)
    if row is None:
        raise no_conversation(conversation)
    return row


async def conversations_of(
    transaction: Transaction, keys: TenantKeys, tenant: str, rows: list[DictRow]
) -> list[Conversation]:
    versions = {row["title_key_version"] for row in rows if row["title"] is not None}
    by_version = {version: await keys.of_version(transaction, tenant, version) for version in versions}
    return [
        Conversation(
            row["id"],
            row["created_at"],
            row["updated_at"],
            row["end_user"],
            row["metadata"],
            row["title"] and by_version[row["title_key_version"]].unseal(row["title"], _title_of(row["id"])).decode(),
        )
        for row in rows
    ]


def _sealed(title: str | None, key: TenantKey, conversation: str) -> dict[str, Any]:
    """Its columns."""
    if not title:
        return {"title": None, "key_version": None}
    return {"title": key.seal(title.encode(), _title_of(conversation)), "key_version": key.version}


def bytes_of(metadata: dict[str, str] | None) -> int:
    return 0 if metadata is None else len(msgspec.json.encode(metadata))


def _microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _time_of(place: str) -> datetime:
    """Raises InvalidRequest."""
    try:
        return _EPOCH + timedelta(microseconds=int(place))
    except (ValueError, OverflowError) as error:
        raise no_cursor() from error


def _title_of(conversation: str) -> str:
    return f"conversations/{conversation}/title"

"""Conversations and their items in PostgreSQL."""

from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec
from psycopg.types.json import Jsonb

from api.state.encryption.tenant_keys import TenantKey
from api.state.postgres.database import Row
from api.state.postgres.derived import lock_of_derived
from api.state.postgres.list_pages import PAGE_BYTES, FoundPart, cursor_to, items_in, no_cursor, place_in
from api.state.postgres.queries import queries
from api.state.postgres.stores.compactions import opened
from api.state.postgres.stores.items import (
    ROW_BYTES,
    Item,
    ItemLimits,
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
from api.state.postgres.tenant_transaction import TenantDatabase, TenantTransaction
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
    def __init__(self, database: TenantDatabase, limits: ItemLimits) -> None:
        self._database = database
        self._limits = limits

    async def create(
        self,
        tenant: str,
        metadata: dict[str, str],
        items: list[Item],
        end_user: str | None = None,
        title: str | None = None,
    ) -> Conversation:
        """Create a conversation with these items. Raises NotFound for a reference to an item that is gone,
        InvalidRequest.
        """
        added = await self._packed(tenant, items)
        adds = added.num_bytes + ROW_BYTES + bytes_of(metadata)
        async with self._database.transaction(tenant, adds=adds) as transaction:
            key = await transaction.sealing_key()
            conversation = new_id("conv")
            values = {"id": conversation, "end_user": end_user, "metadata": Jsonb(metadata)}
            values |= _sealed(title, key, conversation)
            rows = await transaction.fetch_all(_SQL["create"], **values)
            await append(transaction, key, added, conversation=conversation, limits=self._limits)
            return (await conversations_of(transaction, rows))[0]

    async def get(self, tenant: str, conversation: str) -> Conversation:
        """Raises NotFound."""
        async with self._database.transaction(tenant) as transaction:
            return await _found(transaction, conversation)

    async def update(
        self, tenant: str, conversation: str, metadata: dict[str, str] | None = None, title: str | None = None
    ) -> Conversation:
        """Change the metadata, the title, or both. None leaves the value as it was; an empty title removes the title.
        Raises NotFound, InvalidRequest.
        """
        async with self._database.transaction(tenant, adds=bytes_of(metadata)) as transaction:
            key = await transaction.sealing_key()
            values = {
                "id": conversation,
                "metadata": None if metadata is None else Jsonb(metadata),
                "changes_title": title is not None,
                **_sealed(title, key, conversation),
            }
            rows = await transaction.fetch_all(_SQL["update"], **values)
            if not rows:
                raise no_conversation(conversation)
            return (await conversations_of(transaction, rows))[0]

    async def add_title(self, tenant: str, conversation: str, title: str, items: list[str]) -> None:
        """Give a conversation its first title. `items`: the ids of the items that the title was made from. No-op if one
        of them is gone, and for a conversation that is gone or has a title.
        """
        async with self._database.transaction(tenant) as transaction:
            key = await transaction.sealing_key()
            await transaction.execute(_SQL["lock"], conversation=conversation)  # no item leaves the conversation now
            await transaction.execute(
                _SQL["add_title"], id=conversation, items=items, **_sealed(title, key, conversation)
            )

    async def delete(self, tenant: str, conversation: str, gone: list[str]) -> None:
        """Hide a conversation; the retention removes its rows later. The ids of the responses that are deleted with the
        conversation are appended to `gone` before the transaction is committed, so that `gone` has them even if the
        commit fails. Raises NotFound.
        """
        async with self._database.transaction(tenant) as transaction:
            await transaction.execute(_SQL["lock_responses"], id=conversation)
            if await transaction.fetch_one(_SQL["delete"], id=conversation) is None:
                raise no_conversation(conversation)
            rows = await transaction.fetch_all(_SQL["delete_responses"], id=conversation)
            gone += [row["id"] for row in rows]

    async def find(
        self, tenant: str, page: Page, end_user: str | None = None, metadata: dict[str, str] | None = None
    ) -> FoundPart[Conversation]:
        """A page of the conversations that match all of the given filters, ordered by their last change. Raises
        InvalidRequest, NotFound for a wrong page.
        """
        query = _SQL["list_newest_first" if page.newest_first else "list_oldest_first"]
        after, place = place_in(page)
        at = None if place is None else _time_of(place)
        values = {"end_user": end_user, "metadata": Jsonb(metadata or {}), "after": after, "at": at}
        async with self._database.transaction(tenant) as transaction:
            rows = await transaction.fetch_all(query, limit=page.limit + 1, **values)
            if not rows and after and place is None:
                await found_conversation(transaction, after)
            found = await conversations_of(transaction, rows[: page.limit])
        cursor = cursor_to(found[-1].id, str(_microseconds(found[-1].updated_at))) if found else None
        return FoundPart(Part(found, len(rows) > page.limit), cursor)

    async def add_items(self, tenant: str, conversation: str, items: list[Item]) -> list[Item]:
        """Append items in this order. Returns them with their ids. Raises NotFound, InvalidRequest."""
        added = await self._packed(tenant, items)
        async with self._database.transaction(tenant, adds=added.num_bytes) as transaction:
            key = await transaction.sealing_key()
            await append(transaction, key, added, conversation=conversation, limits=self._limits)
            return added.items

    async def items(self, tenant: str, conversation: str, page: Page) -> Part[Item]:
        """Raises NotFound."""
        query = _SQL["items_newest_first" if page.newest_first else "items_oldest_first"]
        values = {"conversation": conversation, "after": page.after, "limit": page.limit + 1, "max_bytes": PAGE_BYTES}
        async with self._database.transaction(tenant) as transaction:
            await found_conversation(transaction, conversation)
            rows = await transaction.fetch_all(query, **values)
            if not rows and page.after:
                place = {"conversation": conversation, "id": page.after}
                if await transaction.fetch_one(_SQL["had_item"], **place) is None:
                    raise no_item(page.after)
            keys = await transaction.keys_of(rows)
        return await items_in(page, keys, rows)

    async def item(self, tenant: str, conversation: str, item: str) -> Item:
        """Raises NotFound."""
        async with self._database.transaction(tenant) as transaction:
            await found_conversation(transaction, conversation)
            row = await transaction.fetch_one(_SQL["get_item"], conversation=conversation, id=item)
            if row is None:
                raise no_item(item)
            keys = await transaction.keys_of([row])
        return (await unsealed(keys, [row]))[0]

    async def delete_item(self, tenant: str, conversation: str, item: str, changed: list[str]) -> Conversation:
        """Delete an item with all that was derived from it. Returns the conversation as it is then. The id of the
        response that the item is part of is appended to `changed` before the transaction is committed, so that
        `changed` has it even if the commit fails. Raises NotFound.
        """
        async with self._database.transaction(tenant, lock=lock_of_derived(tenant)) as transaction:
            await found_conversation(transaction, conversation)
            values = {"conversation": conversation, "id": item}
            for statement in ("lock_response_of_item", "lock", "forget_in_branches"):
                await transaction.execute(_SQL[statement], **values)
            row = await transaction.fetch_one(_SQL["delete_item"], **values)
            if row is None:
                raise no_item(item)
            if row["response_id"] is not None:
                changed.append(row["response_id"])
            return await _found(transaction, conversation)

    async def _packed(self, tenant: str, items: list[Item]) -> Packed:
        """The items with ids, and with each reference replaced by the stored item. Raises NotFound, InvalidRequest."""
        if refers(items) or any(item["type"] == "compaction" for item in items):
            async with self._database.transaction(tenant) as transaction:
                items = await referred(transaction, items, "items")
                await opened(transaction, items)
        return await packed(with_ids(items), "items", self._limits)


def no_item(item: str) -> NotFound:
    return NotFound(f"no item with id '{item}' in this conversation", "item_id", "item_not_found")


async def _found(transaction: TenantTransaction, conversation: str) -> Conversation:
    row = await found_conversation(transaction, conversation)
    return (await conversations_of(transaction, [row]))[0]


async def found_conversation(transaction: TenantTransaction, conversation: str) -> Row:
    """Raises NotFound."""
    row = await transaction.fetch_one(_SQL["get"], id=conversation)
    if row is None:
        raise no_conversation(conversation)
    return row


async def conversations_of(transaction: TenantTransaction, rows: list[Row]) -> list[Conversation]:
    by_version = await transaction.keys(row["title_key_version"] for row in rows if row["title"] is not None)
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
    """The columns of a title."""
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

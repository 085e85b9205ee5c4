"""Stored chat completions, as PostgreSQL holds them. Every look-up is within one tenant."""

from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from api.state.encryption.tenant_keys import TenantKey, TenantKeys
from api.state.postgres.database import Database, Transaction, fetch_all, fetch_one
from api.state.postgres.parts import PAGE_BYTES, part_of_rows
from api.state.postgres.queries import queries
from api.state.postgres.stores.conversations import bytes_of
from api.state.postgres.stores.items import ROW_BYTES, aside
from api.wire.pages import Page, Part
from cluster.errors import NotFound

Body = dict[str, Any]
"""A chat completion or a message, as the wire has it."""

_SQL = queries("chat_completions.sql")


class ChatCompletion(NamedTuple):
    """To be stored."""

    id: str
    created_at: datetime
    model: str
    end_user: str | None
    metadata: dict[str, str]
    body: bytes
    """JSON, without the metadata."""
    messages: bytes
    """JSON: those that it answers."""

    @property
    def num_bytes(self) -> int:
        """That it takes when it is stored."""
        return ROW_BYTES + len(self.body) + len(self.messages) + bytes_of(self.metadata)


class ChatCompletions:
    def __init__(self, database: Database, keys: TenantKeys) -> None:
        self._database = database
        self._keys = keys

    async def add(self, tenant: str, completion: ChatCompletion) -> None:
        """No-op for one that is there. Raises InvalidRequest where the tenant's quota is used up."""
        async with self._database.transaction(tenant, adds=completion.num_bytes) as transaction:
            key = await self._keys.newest(transaction, tenant)
            sealed = {
                "metadata": Jsonb(completion.metadata),
                "body": key.seal(completion.body, _place(completion.id, "body")),
                "messages": key.seal(completion.messages, _place(completion.id, "messages")),
            }
            values = {**completion._asdict(), **sealed, "tenant": tenant, "key_version": key.version}
            await transaction.execute(_SQL["add"], values)

    async def get(self, tenant: str, completion: str) -> Body:
        """Raises NotFound."""
        async with self._database.transaction(tenant) as transaction:
            return await self._one(transaction, tenant, await self._found(transaction, tenant, completion))

    async def update(self, tenant: str, completion: str, metadata: dict[str, str]) -> Body:
        """Raises NotFound, InvalidRequest."""
        async with self._database.transaction(tenant, adds=bytes_of(metadata)) as transaction:
            values = {"tenant": tenant, "id": completion, "metadata": Jsonb(metadata)}
            row = await fetch_one(transaction, _SQL["update_metadata"], **values)
            if row is None:
                raise no_completion(completion)
            return await self._one(transaction, tenant, row)

    async def delete(self, tenant: str, completion: str) -> None:
        """With the feedback on it. Raises NotFound."""
        async with self._database.transaction(tenant) as transaction:
            if await fetch_one(transaction, _SQL["delete"], tenant=tenant, id=completion) is None:
                raise no_completion(completion)

    async def find(
        self, tenant: str, page: Page, model: str | None, end_user: str | None, metadata: dict[str, str]
    ) -> Part[Body]:
        """Raises NotFound."""
        query = _SQL["list_newest_first" if page.newest_first else "list_oldest_first"]
        values = {"model": model, "end_user": end_user, "metadata": Jsonb(metadata), "max_bytes": PAGE_BYTES}
        async with self._database.transaction(tenant) as transaction:
            rows = await fetch_all(transaction, query, tenant=tenant, after=page.after, limit=page.limit + 1, **values)
            if not rows and page.after:
                await self._found(transaction, tenant, page.after)
            keys = await self._keys.of_rows(transaction, tenant, rows)
        shown, has_more = part_of_rows(rows, page.limit)
        return Part(await _unsealed(keys, shown), has_more)

    async def messages(self, tenant: str, completion: str) -> list[Body]:
        """That it answers. Raises NotFound."""
        async with self._database.transaction(tenant) as transaction:
            row = await fetch_one(transaction, _SQL["messages"], tenant=tenant, id=completion)
            if row is None:
                raise no_completion(completion)
            key = await self._keys.of_version(transaction, tenant, row["key_version"])
        sealed, place = row["messages"], _place(completion, "messages")
        return await aside(1, len(sealed), lambda: list(msgspec.json.decode(key.unseal(sealed, place))))

    async def _found(self, transaction: Transaction, tenant: str, completion: str) -> DictRow:
        row = await fetch_one(transaction, _SQL["get"], tenant=tenant, id=completion)
        if row is None:
            raise no_completion(completion)
        return row

    async def _one(self, transaction: Transaction, tenant: str, row: DictRow) -> Body:
        return (await _unsealed(await self._keys.of_rows(transaction, tenant, [row]), [row]))[0]


async def _unsealed(keys: dict[int, TenantKey], rows: list[DictRow]) -> list[Body]:
    """`keys`: of the rows."""
    num_bytes = sum(len(row["body"]) for row in rows)
    return await aside(len(rows), num_bytes, lambda: [_shown(keys[row["key_version"]], row) for row in rows])


def _shown(key: TenantKey, row: DictRow) -> Body:
    body: Body = msgspec.json.decode(key.unseal(row["body"], _place(row["id"], "body")))
    return body | {"metadata": row["metadata"]}


def no_completion(completion: str) -> NotFound:
    return NotFound(f"no stored chat completion with id '{completion}'", "completion_id", "completion_not_found")


def _place(completion: str, column: str) -> str:
    return f"chat_completions/{completion}/{column}"

"""Stored chat completions in PostgreSQL."""

from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from psycopg.types.json import Jsonb

from api.state.encryption.tenant_keys import TenantKey
from api.state.postgres.database import Row
from api.state.postgres.list_pages import PAGE_BYTES, part_of_rows
from api.state.postgres.queries import queries
from api.state.postgres.stores.conversations import bytes_of
from api.state.postgres.stores.items import ROW_BYTES, aside
from api.state.postgres.tenant_transaction import TenantDatabase, TenantTransaction
from api.wire.pages import Page, Part
from cluster.errors import NotFound

Body = dict[str, Any]
"""A chat completion or a message, as the API shows it."""

_SQL = queries("chat_completions.sql")


class ChatCompletion(NamedTuple):
    """A chat completion that is to be stored."""

    id: str
    created_at: datetime
    model: str
    end_user: str | None
    metadata: dict[str, str]
    body: bytes
    """The chat completion as JSON, without its metadata."""
    messages: bytes
    """The messages of the request as JSON."""

    @property
    def num_bytes(self) -> int:
        """The bytes that the stored chat completion counts toward the quota."""
        return ROW_BYTES + len(self.body) + len(self.messages) + bytes_of(self.metadata)


class ChatCompletions:
    def __init__(self, database: TenantDatabase) -> None:
        self._database = database

    async def add(self, tenant: str, completion: ChatCompletion) -> None:
        """Store a chat completion, unless it is stored already. Raises InvalidRequest if the tenant's quota is used
        up.
        """
        async with self._database.transaction(tenant, adds=completion.num_bytes) as transaction:
            key = await transaction.sealing_key()
            sealed = {
                "metadata": Jsonb(completion.metadata),
                "body": key.seal(completion.body, _place(completion.id, "body")),
                "messages": key.seal(completion.messages, _place(completion.id, "messages")),
            }
            values = {**completion._asdict(), **sealed, "key_version": key.version}
            await transaction.execute(_SQL["add"], **values)

    async def get(self, tenant: str, completion: str) -> Body:
        """Raises NotFound."""
        async with self._database.transaction(tenant) as transaction:
            return await _one(transaction, await _found(transaction, completion))

    async def update(self, tenant: str, completion: str, metadata: dict[str, str]) -> Body:
        """Raises NotFound, InvalidRequest."""
        async with self._database.transaction(tenant, adds=bytes_of(metadata)) as transaction:
            row = await transaction.fetch_one(_SQL["update_metadata"], id=completion, metadata=Jsonb(metadata))
            if row is None:
                raise no_completion(completion)
            return await _one(transaction, row)

    async def delete(self, tenant: str, completion: str) -> None:
        """Delete a chat completion with the feedback on it. Raises NotFound."""
        async with self._database.transaction(tenant) as transaction:
            if await transaction.fetch_one(_SQL["delete"], id=completion) is None:
                raise no_completion(completion)

    async def find(
        self, tenant: str, page: Page, model: str | None, end_user: str | None, metadata: dict[str, str]
    ) -> Part[Body]:
        """A page of the chat completions that match all of the given filters. Raises NotFound."""
        query = _SQL["list_newest_first" if page.newest_first else "list_oldest_first"]
        values = {"model": model, "end_user": end_user, "metadata": Jsonb(metadata), "max_bytes": PAGE_BYTES}
        async with self._database.transaction(tenant) as transaction:
            rows = await transaction.fetch_all(query, after=page.after, limit=page.limit + 1, **values)
            if not rows and page.after:
                await _found(transaction, page.after)
            keys = await transaction.keys_of(rows)
        shown, has_more = part_of_rows(rows, page.limit)
        return Part(await _unsealed(keys, shown), has_more)

    async def messages(self, tenant: str, completion: str) -> list[Body]:
        """The messages of the request that a chat completion answers. Raises NotFound."""
        async with self._database.transaction(tenant) as transaction:
            row = await transaction.fetch_one(_SQL["messages"], id=completion)
            if row is None:
                raise no_completion(completion)
            key = await transaction.key(row["key_version"])
        sealed, place = row["messages"], _place(completion, "messages")
        return await aside(1, len(sealed), lambda: list(msgspec.json.decode(key.unseal(sealed, place))))


async def _found(transaction: TenantTransaction, completion: str) -> Row:
    row = await transaction.fetch_one(_SQL["get"], id=completion)
    if row is None:
        raise no_completion(completion)
    return row


async def _one(transaction: TenantTransaction, row: Row) -> Body:
    return (await _unsealed(await transaction.keys_of([row]), [row]))[0]


async def _unsealed(keys: dict[int, TenantKey], rows: list[Row]) -> list[Body]:
    """The chat completions of these rows. `keys`: the keys of the rows, by version."""
    num_bytes = sum(len(row["body"]) for row in rows)
    return await aside(len(rows), num_bytes, lambda: [_shown(keys[row["key_version"]], row) for row in rows])


def _shown(key: TenantKey, row: Row) -> Body:
    body: Body = msgspec.json.decode(key.unseal(row["body"], _place(row["id"], "body")))
    return body | {"metadata": row["metadata"]}


def no_completion(completion: str) -> NotFound:
    return NotFound(f"no stored chat completion with id '{completion}'", "completion_id", "completion_not_found")


def _place(completion: str, column: str) -> str:
    return f"chat_completions/{completion}/{column}"

"""Responses as PostgreSQL holds them: admitted before anything is generated, finished once. Every look-up is within one
tenant.
"""

from datetime import timedelta
from typing import Any

import msgspec
from psycopg.errors import UniqueViolation

from api.state.conversations import Page, found_conversation
from api.state.database import EVERY_TENANT, Database, Transaction, fetch_all, fetch_one
from api.state.history import History, history_of
from api.state.items import Item, Turn, append, unsealed
from api.state.queries import queries
from api.state.sealing import TenantKeys
from cluster.errors import Conflict, NotFound

LEASE = timedelta(seconds=15)
"""A response that nobody has renewed for so long has lost whoever generated it."""

Body = dict[str, Any]
"""A response object, as the wire has it."""

_SQL = queries("responses.sql")
_LOST = {"code": "server_error", "message": "the server was lost while it generated this response"}


class Responses:
    def __init__(self, database: Database, keys: TenantKeys) -> None:
        self._database = database
        self._keys = keys

    async def history(self, tenant: str, conversation: str | None, previous: str | None) -> History:
        """What a turn follows. Raises NotFound."""
        async with self._database.transaction(tenant) as transaction:
            return await history_of(transaction, self._keys, tenant, conversation, previous)

    async def admit(
        self, tenant: str, body: Body, items: list[Item], conversation: str | None, previous: str | None
    ) -> History:
        """The turn is durable from here on, and nobody else's on its conversation. `items`: its input, with ids.
        Returns what it follows.

        Raises:
            NotFound: no such conversation or previous response.
            Conflict: another turn is running on the conversation.
        """
        try:
            async with self._database.transaction(tenant) as transaction:
                if conversation is not None:
                    await found_conversation(transaction, tenant, conversation)
                key = await self._keys.newest(transaction, tenant)
                if conversation is not None:
                    await transaction.execute(
                        _SQL["end_orphan_of_conversation"], {"tenant": tenant, "conversation": conversation}
                    )
                values = {
                    "tenant": tenant,
                    "id": body["id"],
                    "conversation": conversation,
                    "previous": previous,
                    "body": key.seal(msgspec.json.encode({**body, "output": []}), _place(body["id"])),
                    "key_version": key.version,
                    "lease": LEASE,
                }
                await transaction.execute(_SQL["create"], values)  # from here on the conversation is this turn's
                history = await history_of(transaction, self._keys, tenant, conversation, previous)
                turn = Turn(body["id"], 0, is_output=False)
                await append(transaction, key, items, conversation=conversation, turn=turn)
                return history
        except UniqueViolation as error:
            raise Conflict(
                f"another response is being generated in conversation '{conversation}'",
                "conversation",
                "conversation_locked",
            ) from error

    async def renew(self, tenant: str, response: str) -> None:
        async with self._database.transaction(tenant) as transaction:
            await transaction.execute(_SQL["renew"], {"tenant": tenant, "id": response, "lease": LEASE})

    async def finish(self, tenant: str, body: Body) -> None:
        """With its output. No-op for one that is over."""
        async with self._database.transaction(tenant) as transaction:
            key = await self._keys.newest(transaction, tenant)
            values = {
                "tenant": tenant,
                "id": body["id"],
                "status": body["status"],
                "body": key.seal(msgspec.json.encode({**body, "output": []}), _place(body["id"])),
                "key_version": key.version,
            }
            row = await fetch_one(transaction, _SQL["finish"], **values)
            if row is not None:
                turn = Turn(body["id"], row["num_items"], is_output=True)
                await append(transaction, key, body["output"], conversation=row["conversation_id"], turn=turn)

    async def withdraw(self, tenant: str, response: str) -> None:
        """It was never admitted, and neither was its input."""
        async with self._database.transaction(tenant) as transaction:
            await transaction.execute(_SQL["withdraw_items"], {"tenant": tenant, "id": response})
            await transaction.execute(_SQL["delete"], {"tenant": tenant, "id": response})

    async def get(self, tenant: str, response: str) -> Body:
        """Raises NotFound."""
        async with self._database.transaction(tenant) as transaction:
            row = await fetch_one(transaction, _SQL["get"], tenant=tenant, id=response)
            if row is None:
                raise no_response(response)
            key = await self._keys.of_version(transaction, tenant, row["key_version"])
            body: Body = msgspec.json.decode(key.unseal(row["body"], _place(response)))
            output = await fetch_all(transaction, _SQL["output"], tenant=tenant, id=response)
            is_lost = row["status"] == "failed" and body["error"] is None
            lost = {"error": _LOST} if is_lost else {}
            return body | {"status": row["status"], **lost, "output": await self._items(transaction, tenant, output)}

    async def delete(self, tenant: str, response: str) -> None:
        """Its items stay in the conversation that they belong to.

        Raises:
            NotFound: there is no such response.
            Conflict: it is being generated.
        """
        async with self._database.transaction(tenant) as transaction:
            row = await fetch_one(transaction, _SQL["lock"], tenant=tenant, id=response)
            if row is None:
                raise no_response(response)
            if row["status"] in ("queued", "in_progress"):
                raise Conflict(f"response '{response}' is still being generated", None, "response_in_progress")
            await transaction.execute(_SQL["delete_items"], {"tenant": tenant, "id": response})
            await transaction.execute(_SQL["delete"], {"tenant": tenant, "id": response})

    async def input_items(self, tenant: str, response: str, page: Page) -> list[Item]:
        """One more than the page takes, where there are more. Raises NotFound."""
        query = _SQL["input_newest_first" if page.newest_first else "input_oldest_first"]
        async with self._database.transaction(tenant) as transaction:
            if await fetch_one(transaction, _SQL["get"], tenant=tenant, id=response) is None:
                raise no_response(response)
            values = {"id": response, "after": page.after, "limit": page.limit + 1}
            return await self._items(transaction, tenant, await fetch_all(transaction, query, tenant=tenant, **values))

    async def end_orphans(self) -> None:
        """Responses whose generator is gone have failed."""
        async with self._database.transaction(EVERY_TENANT) as transaction:
            await transaction.execute(_SQL["end_orphans"])

    async def _items(self, transaction: Transaction, tenant: str, rows: list[Any]) -> list[Item]:
        return await unsealed(transaction, self._keys, tenant, rows)


def no_response(response: str) -> NotFound:
    return NotFound(f"no response with id '{response}'", "response_id", "response_not_found")


def _place(response: str) -> str:
    return f"responses/{response}/body"

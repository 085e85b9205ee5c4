"""What the context manager keeps. Every look-up is within one tenant."""

from collections.abc import Sequence

from api.state.encryption.tenant_keys import TenantKeys
from api.state.postgres.database import Database, fetch_one
from api.state.postgres.queries import queries
from api.state.postgres.stores.compactions import opened, sealed_summary
from api.state.postgres.stores.items import Coverage, Item, StoredTurn, append, new_id, packed

_SQL = queries("context.sql")


class ContextStore:
    def __init__(self, database: Database, keys: TenantKeys) -> None:
        self._database = database
        self._keys = keys

    async def compaction(self, tenant: str, summary: str) -> Item:
        """An item for the client to keep."""
        async with self._database.transaction(tenant) as transaction:
            key = await self._keys.newest(transaction, tenant)
            return {"id": new_id("cmp"), "type": "compaction", "encrypted_content": sealed_summary(key, summary)}

    async def opened(self, tenant: str, items: list[Item]) -> list[Item]:
        """The compactions among the items with their `summary`. Raises InvalidRequest for one that is not ours."""
        async with self._database.transaction(tenant) as transaction:
            return await opened(transaction, self._keys, tenant, items)

    async def add_summary(self, tenant: str, response: str, coverage: Coverage, summary: str) -> bool:
        """At the end of the response, and of its conversation. False: the response, or what is covered, is gone."""
        async with self._database.transaction(tenant) as transaction:
            values = {"tenant": tenant, "id": response, "last": coverage.through, "number": coverage.number}
            for statement in ("lock_response", "lock_conversation"):
                await transaction.execute(_SQL[statement], values)
            row = await fetch_one(transaction, _SQL["summarized_response"], **values)
            if row is None:
                return False
            key = await self._keys.newest(transaction, tenant)
            item = {
                "id": new_id("cmp"),
                "type": "compaction",
                "status": "completed",
                "encrypted_content": sealed_summary(key, summary),
            }
            turn = StoredTurn(response, row["position"], is_output=True)
            added = await packed([item], "output")
            await append(transaction, key, added, conversation=row["conversation_id"], turn=turn, coverage=coverage)
            return True

    async def add_memory(self, tenant: str, response: str, items: Sequence[str]) -> None:
        """Ids of the items that the turn was reminded of."""
        async with self._database.transaction(tenant) as transaction:
            await transaction.execute(_SQL["remember"], {"tenant": tenant, "id": response, "items": list(items)})

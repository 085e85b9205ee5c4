"""What the context manager stores of a conversation: its summaries, and the items that turns were reminded of."""

from collections.abc import Sequence

from api.state.postgres.queries import queries
from api.state.postgres.stores.compactions import opened, sealed_summary
from api.state.postgres.stores.items import Coverage, Item, StoredTurn, append, new_id, packed
from api.state.postgres.tenant_transaction import TenantDatabase

_SQL = queries("context.sql")


class ContextStore:
    def __init__(self, database: TenantDatabase) -> None:
        self._database = database

    async def compaction(self, tenant: str, summary: str) -> Item:
        """The compaction item of a summary, for the client to keep. It is not stored here."""
        async with self._database.transaction(tenant) as transaction:
            key = await transaction.sealing_key()
            return {"id": new_id("cmp"), "type": "compaction", "encrypted_content": sealed_summary(key, summary)}

    async def opened(self, tenant: str, items: list[Item]) -> list[Item]:
        """The items, with a `summary` in each compaction. Raises InvalidRequest for a compaction of another tenant or
        server.
        """
        async with self._database.transaction(tenant) as transaction:
            return await opened(transaction, items)

    async def add_summary(self, tenant: str, response: str, coverage: Coverage, summary: str) -> bool:
        """Append a summary to the response, and to its conversation. Returns False if the response or one of the
        covered items is gone.
        """
        async with self._database.transaction(tenant) as transaction:
            for statement in ("lock_response", "lock_conversation"):
                await transaction.execute(_SQL[statement], id=response)
            row = await transaction.fetch_one(
                _SQL["summarized_response"], id=response, last=coverage.through, number=coverage.number
            )
            if row is None:
                return False
            key = await transaction.sealing_key()
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
        """Store the ids of the items that a turn was reminded of."""
        async with self._database.transaction(tenant) as transaction:
            await transaction.execute(_SQL["remember"], id=response, items=list(items))

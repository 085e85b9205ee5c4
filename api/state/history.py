"""What a turn follows, as PostgreSQL holds it."""

from api.state.conversations import found_conversation
from api.state.database import Transaction, fetch_all, fetch_one
from api.state.items import Item, unsealed
from api.state.queries import queries
from api.state.sealing import TenantKeys
from cluster.errors import Conflict, NotFound

_SQL = queries("history.sql")


async def history_of(
    transaction: Transaction, keys: TenantKeys, tenant: str, conversation: str | None, previous: str | None
) -> list[Item]:
    """The oldest item first.

    Raises:
        NotFound: no such conversation or previous response.
        Conflict: the previous response is being generated.
    """
    if conversation is not None:
        await found_conversation(transaction, tenant, conversation)
        query, values = _SQL["of_conversation"], {"conversation": conversation}
    elif previous is not None:
        found = await fetch_one(transaction, _SQL["status"], tenant=tenant, id=previous)
        if found is None:
            raise NotFound(f"no response with id '{previous}'", "previous_response_id", "previous_response_not_found")
        if found["status"] in ("queued", "in_progress"):
            raise Conflict(
                f"response '{previous}' is still being generated",
                "previous_response_id",
                "previous_response_in_progress",
            )
        query, values = _SQL["up_to"], {"id": previous}
    else:
        return []
    return await unsealed(transaction, keys, tenant, await fetch_all(transaction, query, tenant=tenant, **values))

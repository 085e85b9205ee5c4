"""Changes of the service itself in the log of changes, where those of accounts are."""

from collections.abc import Awaitable, Callable

import msgspec

from api.state.postgres.accounts.account_transaction import change_of
from api.state.postgres.database import EVERY_TENANT, Database
from api.state.postgres.queries import queries

_SQL = queries("accounts.sql")


class _ChangedNothing(Exception):
    """The change is not logged."""


class _Nothing(msgspec.Struct, frozen=True):
    """The action and its object say all."""


class ServiceChanges:
    """The changes belong to no tenant: the log shows them under EVERY_TENANT."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def logged(self, actor: str, action: str, object_id: str, change: Callable[[], Awaitable[bool]]) -> bool:
        """Make a change and log it, both or neither. `change` returns whether it has changed something, and so does
        this. An error of `change` is raised, and nothing is logged. Raises StateUnavailable, and changes nothing, if
        PostgreSQL is away.
        """
        try:
            async with change_of(self._database, EVERY_TENANT, actor) as transaction:
                await transaction.run(_SQL["add_tenant"])
                await transaction.note(action, object_id, None, _Nothing())
                if not await change():
                    raise _ChangedNothing
        except _ChangedNothing:
            return False
        return True

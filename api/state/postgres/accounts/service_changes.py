"""Changes of the service itself in the log of changes, where those of accounts are."""

import logging
from collections.abc import Awaitable, Callable

import msgspec

from api.state.postgres.accounts.account_transaction import change_of
from api.state.postgres.database import EVERY_TENANT, Database
from api.state.postgres.queries import queries

logger = logging.getLogger("baton.state")

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
        """Make a change and log it. `change` returns whether it has changed something, and so does this. An error of
        `change` is raised, and nothing is logged. Raises StateUnavailable if PostgreSQL is away. Nothing is changed
        then, unless PostgreSQL was lost after the change and before the end of the transaction. Such a change has
        effect, may be missing in the log of changes, and is in the log of the process.
        """
        is_changed = is_logged = False
        try:
            async with change_of(self._database, EVERY_TENANT, actor) as transaction:
                await transaction.run(_SQL["add_tenant"])
                await transaction.note(action, object_id, None, _Nothing())
                is_changed = await change()
                if not is_changed:
                    raise _ChangedNothing
            is_logged = True
        except _ChangedNothing:
            return False
        finally:
            if is_changed and not is_logged:
                logger.error(
                    "%s of %s by %s has effect, and may not be in the log of changes", action, object_id, actor
                )
        return True

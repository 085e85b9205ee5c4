"""One transaction in which an operator changes the account of one tenant, and which logs what was changed."""

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec
from psycopg.errors import UniqueViolation
from psycopg.types.json import Jsonb

from api.identity.settings import check_name
from api.state.postgres.database import EVERY_TENANT, Database, Query, Row, Transaction, fetch_all, fetch_one
from api.state.postgres.queries import queries
from cluster.errors import Conflict, NotFound, ServingError

T = TypeVar("T")

_SQL = queries("accounts.sql")
_NOT_LOGGED = frozenset({"id", "tenant", "created_at", "last_used_at"})
"""What never changes, and what changes without an operator."""


class AccountTransaction:
    """Every statement may name the tenant as `%(tenant)s`."""

    def __init__(self, connection: Transaction, tenant: str, actor: str) -> None:
        self._connection = connection
        self.tenant = tenant
        self._actor = actor

    async def fetch_all(self, query: Query, **values: object) -> list[Row]:
        return await fetch_all(self._connection, query, tenant=self.tenant, **values)

    async def fetch_one(self, query: Query, **values: object) -> Row | None:
        return await fetch_one(self._connection, query, tenant=self.tenant, **values)

    async def run(self, query: Query, **values: object) -> None:
        await self._connection.execute(query, {"tenant": self.tenant, **values})

    async def note(self, action: str, object_id: str, before: msgspec.Struct | None, after: msgspec.Struct) -> None:
        """Log a change: of a new object all, of another one what is different."""
        new, old = _logged(after), {} if before is None else _logged(before)
        changed = [name for name in new if before is None or new[name] != old[name]]
        await self.run(
            _SQL["note"],
            actor=self._actor,
            action=action,
            object=object_id,
            before=None if before is None else Jsonb({name: old[name] for name in changed}),
            after=Jsonb({name: new[name] for name in changed}),
        )


@asynccontextmanager
async def change_of(database: Database, tenant: str, actor: str) -> AsyncIterator[AccountTransaction]:
    """A transaction in the name of a tenant, which is allowed even while the tenant is being erased. `actor`: who makes
    the change, for the log.

    Raises:
        Conflict: something has the same name.
        InvalidRequest: the name of the actor, or a text, cannot be stored.
        StateUnavailable: PostgreSQL is away.
    """
    check_name(actor, "actor")
    try:
        async with database.transaction(EVERY_TENANT) as connection:
            await connection.execute(_SQL["as_tenant"], {"tenant": tenant})
            yield AccountTransaction(connection, tenant, actor)
    except UniqueViolation as error:
        raise Conflict("there is another one with this name: choose another name", "name", "name_taken") from error


async def tenant_of(database: Database, query: Query, object_id: str, kind: str) -> str:
    """The tenant of a project or a key. Raises NotFound."""
    async with database.transaction(EVERY_TENANT) as connection:
        row = await fetch_one(connection, query, id=object_id)
    if row is None:
        raise not_found(kind, object_id)
    return str(row["tenant_id"])


def not_found(kind: str, object_id: str) -> NotFound:
    return NotFound(f"there is no {kind.replace('_', ' ')} '{object_id}'", None, f"{kind}_not_found")


def as_stored(read: Callable[[Any], T], stored: Any, owner: str) -> T:
    """What `read` makes of the stored settings or limits of an owner. Raises ServingError if they cannot be read."""
    try:
        return read(stored)
    except msgspec.ValidationError as error:
        raise ServingError(f"what is stored of {owner} cannot be read, so it cannot be changed: {error}") from error


def random_id(prefix: str = "") -> str:
    return prefix + secrets.token_hex(8)


def _logged(struct: msgspec.Struct) -> dict[str, Any]:
    values: dict[str, Any] = msgspec.to_builtins(struct)
    return {name: value for name, value in values.items() if name not in _NOT_LOGGED}

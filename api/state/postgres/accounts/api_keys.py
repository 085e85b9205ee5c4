"""The API keys of tenants in PostgreSQL, as operators make and change them."""

import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from psycopg.types.json import Jsonb

from api.identity.keys import RANDOM_BYTES, new_key
from api.identity.rights import DEFAULT_RIGHTS, Right
from api.identity.settings import NO_LIMITS, LimitChange, check_models, check_name, limits_of_stored, with_changes
from api.state.postgres.accounts.account_transaction import (
    AccountTransaction,
    as_stored,
    change_of,
    not_found,
    random_id,
    tenant_of,
)
from api.state.postgres.accounts.rows import ApiKey, IssuedKey
from api.state.postgres.accounts.tenant_accounts import locked_project
from api.state.postgres.database import EVERY_TENANT, Database, Row, fetch_all
from api.state.postgres.queries import queries
from api.wire.pages import Part
from cluster.config.tenants.limits import Limits
from cluster.errors import Conflict, InvalidRequest

OVERLAP_S = 86400.0
"""How long a key that is rotated goes on beside the new one unless the operator names a time, in seconds. Shorter gives
clients less time to take the new key; longer lets a key that has leaked work for longer.
"""
MAX_OVERLAP_S = 365 * 86400.0
"""The longest such time, in seconds. More lets a rotated key be forgotten; less refuses slow moves of many clients."""
LATEST = 253402300799
"""The Unix time of the end of the year 9999, the last one that Python's dates have."""

_SQL = queries("api_keys.sql")


class KeyTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator decides about a new key."""

    name: str
    project: str | None = None
    """The id. None for the default project of the tenant."""
    rights: frozenset[Right] = DEFAULT_RIGHTS
    models: frozenset[str] | None = None
    """The models that may be used; None for all."""
    limits: Limits = NO_LIMITS
    expires_at: float | None = None
    """Unix time. None for a key that does not expire."""


class KeyChange(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator changes of a key. What is unset stays."""

    name: str | UnsetType = UNSET
    rights: frozenset[Right] | UnsetType = UNSET
    models: frozenset[str] | UnsetType | None = UNSET
    limits: Mapping[str, LimitChange] | UnsetType = UNSET
    """Limits by name. Others stay."""
    expires_at: float | UnsetType | None = UNSET


class ApiKeyStore:
    """Every method raises StateUnavailable if PostgreSQL is away. `actor`: who makes a change, for the log."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, tenant: str, terms: KeyTerms, actor: str) -> IssuedKey:
        """Raises InvalidRequest, NotFound, and Conflict if the project is archived."""
        check_name(terms.name, "name")
        check_models(terms.models)
        _check_time(terms.expires_at)
        async with change_of(self._database, tenant, actor) as transaction:
            project = await locked_project(transaction, terms.project)
            if project.archived_at is not None:
                raise Conflict(f"the project {project.id} is archived", "project", "project_archived")
            columns = {
                "project": project.id,
                "name": terms.name,
                "rights": sorted(terms.rights),
                "models": None if terms.models is None else sorted(terms.models),
                "limits": Jsonb(msgspec.to_builtins(terms.limits)),
                "expires_at": terms.expires_at,
            }
            issued = await self._issue(transaction, columns, None)
            if issued.key.expires_at is not None and issued.key.expires_at <= issued.key.created_at:
                raise _invalid_time("the key would have expired already")
            return issued

    async def page(self, tenant: str, project: str | None, after: str | None, limit: int) -> Part[ApiKey]:
        """The oldest first. `project`: None for all projects. `after`: the id of the last key of the page before."""
        values = {"tenant": tenant, "project": project, "after": after, "limit": limit + 1}
        async with self._database.transaction(EVERY_TENANT) as connection:
            rows = await fetch_all(connection, _SQL["list"], **values)
        return Part([ApiKey.of_row(row) for row in rows[:limit]], len(rows) > limit)

    async def change(self, key: str, change: KeyChange, actor: str) -> ApiKey:
        """Raises InvalidRequest, NotFound, and Conflict if the key is revoked."""
        if not isinstance(change.name, UnsetType):
            check_name(change.name, "name")
        if not isinstance(change.models, UnsetType):
            check_models(change.models)
        if not isinstance(change.expires_at, UnsetType):
            _check_time(change.expires_at)
        async with change_of(self._database, await self._tenant_of(key), actor) as transaction:
            row = await self._locked(transaction, key)
            old = ApiKey.of_row(row)
            _require_unrevoked(old)
            new_row = await transaction.fetch_one(_SQL["change"], id=key, **_changed_columns(old, change))
            assert new_row is not None
            new = ApiKey.of_row(new_row)
            if new != old:
                await transaction.note("key.change", key, old, new)
            return new

    async def revoke(self, key: str, actor: str) -> ApiKey:
        """Refuse a key from now on. A key that is revoked stays as it is. Raises NotFound."""
        async with change_of(self._database, await self._tenant_of(key), actor) as transaction:
            old = ApiKey.of_row(await self._locked(transaction, key))
            if old.revoked_at is not None:
                return old
            row = await transaction.fetch_one(_SQL["revoke"], id=key)
            assert row is not None
            new = ApiKey.of_row(row)
            await transaction.note("key.revoke", key, old, new)
            return new

    async def rotate(self, key: str, actor: str, overlap_s: float = OVERLAP_S) -> IssuedKey:
        """Issue a key with the terms of this one, which expires after `overlap_s`, or earlier if it would anyway. The
        new key expires when this one would have. Both draw on the same limits and budget.

        Raises:
            Conflict: the key is revoked, has expired, or was rotated before.
            InvalidRequest: the overlap is out of range.
            NotFound: there is no such key.
        """
        if not 0 <= overlap_s <= MAX_OVERLAP_S:
            raise InvalidRequest(f"the overlap must be 0 to {MAX_OVERLAP_S:g} seconds", "overlap_s", "invalid_value")
        async with change_of(self._database, await self._tenant_of(key), actor) as transaction:
            row = await self._locked(transaction, key)
            old = ApiKey.of_row(row)
            _require_unrevoked(old)
            if old.rotated_to is not None:
                raise Conflict(f"the key {key} was rotated before: rotate {old.rotated_to}", None, "key_rotated")
            if row["is_expired"]:
                raise Conflict(f"the key {key} has expired: create another one", None, "key_expired")
            columns = {
                "project": old.project,
                "name": old.name,
                "rights": old.rights,
                "models": old.models,
                "limits": Jsonb(old.limits),
                "expires_at": _unix(old.expires_at),
            }
            issued = await self._issue(transaction, columns, row["lineage"])
            values = {"id": key, "rotated_to": issued.key.id, "overlap_s": overlap_s}
            rotated = await transaction.fetch_one(_SQL["rotate"], **values)
            assert rotated is not None
            await transaction.note("key.rotate", key, old, ApiKey.of_row(rotated))
            return issued

    async def _issue(
        self, transaction: AccountTransaction, columns: Mapping[str, Any], lineage: str | None
    ) -> IssuedKey:
        """`lineage`: the first key of the chain of rotations that the new key continues; None if it begins one."""
        made = new_key(secrets.token_bytes(RANDOM_BYTES))
        values = {"id": random_id("key_"), "digest": made.digest, "handle": made.handle, "lineage": lineage}
        row = await transaction.fetch_one(_SQL["add"], **values, **columns)
        assert row is not None
        key = ApiKey.of_row(row)
        await transaction.note("key.create", key.id, None, key)
        return IssuedKey(key=key, text=made.text)

    async def _tenant_of(self, key: str) -> str:
        """Raises NotFound."""
        return await tenant_of(self._database, _SQL["tenant_of_key"], key, "key")

    async def _locked(self, transaction: AccountTransaction, key: str) -> Row:
        """Raises NotFound."""
        row = await transaction.fetch_one(_SQL["lock"], id=key)
        if row is None:
            raise not_found("key", key)
        return row


def _require_unrevoked(key: ApiKey) -> None:
    """Raises Conflict."""
    if key.revoked_at is not None:
        raise Conflict(f"the key {key.id} is revoked: create another one", None, "key_revoked")


def _changed_columns(old: ApiKey, change: KeyChange) -> dict[str, Any]:
    """Raises InvalidRequest for a limit that is not valid, ServingError if the old ones cannot be read."""
    limits = as_stored(limits_of_stored, old.limits, f"key {old.id}")
    if not isinstance(change.limits, UnsetType):
        limits = with_changes(limits, change.limits)
    models = old.models if isinstance(change.models, UnsetType) else change.models
    return {
        "name": old.name if isinstance(change.name, UnsetType) else change.name,
        "rights": sorted(old.rights if isinstance(change.rights, UnsetType) else change.rights),
        "models": None if models is None else sorted(models),
        "limits": Jsonb(msgspec.to_builtins(limits)),
        "expires_at": _unix(old.expires_at) if isinstance(change.expires_at, UnsetType) else change.expires_at,
    }


def _check_time(at: float | None) -> None:
    """Raises InvalidRequest for a time that PostgreSQL cannot store."""
    if at is not None and not 0 <= at <= LATEST:
        raise _invalid_time("expires_at is no Unix time in seconds")


def _invalid_time(why: str) -> InvalidRequest:
    return InvalidRequest(why, "expires_at", "invalid_value")


def _unix(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()

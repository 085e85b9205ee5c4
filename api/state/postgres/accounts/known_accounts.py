"""What authentication asks of the accounts in PostgreSQL: the AccountsPort of api/identity/ports.py."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from api.identity.ports import AccountChanges, AccountStanding, KnownKey, KnownProject, ProjectName
from api.identity.principal import Principal
from api.identity.rights import Right
from api.identity.settings import NO_LIMITS, NO_SETTINGS, limits_of_stored, settings_of_stored
from api.state.postgres.database import EVERY_TENANT, Database, Row, fetch_all, fetch_one
from api.state.postgres.queries import queries
from cluster.errors import InvalidRequest, ServingError

MOST_TENANTS = 1000
"""Tenants with changes that one look counts. More makes a look larger; fewer has replicas ask for all that they
remember, and not for what has changed.
"""

_SQL = queries("api_keys.sql")
_RIGHTS = {str(right): right for right in Right}


class KnownAccounts:
    """Every method raises StateUnavailable if PostgreSQL is away."""

    def __init__(self, database: Callable[[], Database]) -> None:
        """`database`: gives the database, or raises StateUnavailable before it is reached."""
        self._database = database

    async def look_up(self, digests: Sequence[bytes]) -> Mapping[bytes, KnownKey]:
        async with self._database().transaction(EVERY_TENANT) as connection:
            rows = await fetch_all(connection, _SQL["look_up"], digests=list(digests))
        return {bytes(row["digest"]): _key(row) for row in rows}

    async def look_up_projects(self, names: Sequence[ProjectName]) -> Mapping[ProjectName, KnownProject]:
        values = {"tenants": [name.tenant for name in names], "projects": [name.project for name in names]}
        async with self._database().transaction(EVERY_TENANT) as connection:
            rows = await fetch_all(connection, _SQL["look_up_projects"], **values)
        return {ProjectName(row["tenant_id"], row["asked_project"]): _project(row) for row in rows}

    async def changes(self, since: int | None) -> AccountChanges:
        async with self._database().transaction(EVERY_TENANT) as connection:
            # a version before the first one makes every row a change, and none is needed without a version
            limit = 0 if since is None else MOST_TENANTS + 1
            row = await fetch_one(connection, _SQL["changes"], since=since or 0, limit=limit)
        if row is None:
            raise ServingError("the accounts have no version: the row of accounts_version is missing")
        all_counted = since is not None and len(row["tenants"]) <= MOST_TENANTS
        return AccountChanges(row["version"], frozenset(row["tenants"]) if all_counted else None)

    async def touch(self, used: Mapping[str, float]) -> None:
        async with self._database().transaction(EVERY_TENANT) as connection:
            await connection.execute(_SQL["touch"], {"ids": list(used), "times": list(used.values())})


def _project(row: Row) -> KnownProject:
    """The rights are none: they depend on the credential."""
    standing = AccountStanding.ACTIVE
    settings, limits = NO_SETTINGS, NO_LIMITS
    try:
        settings, limits = settings_of_stored(row["settings"]), limits_of_stored(row["project_limits"])
    except (msgspec.ValidationError, InvalidRequest):
        standing = AccountStanding.UNREADABLE
    if row["is_archived"]:
        standing = AccountStanding.ARCHIVED
    if row["status"] != "active":
        standing = AccountStanding.SUSPENDED
    principal = Principal(
        tenant=row["tenant_id"],
        project=row["project_id"],
        key="",
        rights=frozenset(),
        project_limits=limits,
        settings=settings,
    )
    return KnownProject(standing=standing, principal=principal)


def _key(row: Row) -> KnownKey:
    project = _project(row)
    standing, limits = project.standing, NO_LIMITS
    try:
        limits = limits_of_stored(row["limits"])
    except msgspec.ValidationError:
        standing = AccountStanding.UNREADABLE if standing is AccountStanding.ACTIVE else standing
    principal = msgspec.structs.replace(
        project.principal,
        key=row["id"],
        key_lineage=row["lineage"],
        # a right that a newer version has introduced counts for nothing here
        rights=frozenset(_RIGHTS[name] for name in row["rights"] if name in _RIGHTS),
        models=None if row["models"] is None else frozenset(row["models"]),
        key_limits=limits,
    )
    return KnownKey(
        handle=row["handle"],
        standing=standing,
        is_revoked=row["is_revoked"],
        expires_at=row["expires_at"],
        principal=principal,
    )

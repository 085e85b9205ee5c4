"""The accounts of tenants, their projects, and the log of all changes, in PostgreSQL."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import msgspec
from psycopg.types.json import Jsonb

from api.identity.settings import (
    NO_LIMITS,
    NO_SETTINGS,
    UNCHANGED,
    LimitChange,
    SettingsChange,
    TenantSettings,
    check_name,
    checked_settings,
    limits_of_stored,
    settings_of_stored,
    with_changes,
)
from api.state.postgres.accounts.account_transaction import (
    AccountTransaction,
    as_stored,
    change_of,
    not_found,
    random_id,
    tenant_of,
)
from api.state.postgres.accounts.rows import AccountChange, Project, TenantAccount
from api.state.postgres.database import EVERY_TENANT, Database, fetch_all, fetch_one
from api.state.postgres.queries import queries
from api.wire.pages import Part
from cluster.config.tenants.limits import Limits
from cluster.errors import Conflict, InvalidRequest

DEFAULT_PROJECT = "default"
"""The name of the project that every tenant has from the beginning."""

_ADOPTED = re.compile(r"[0-9a-f]{16}")
_SQL = queries("accounts.sql")


class TenantChange(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator changes of a tenant. A name or a status that is None stays."""

    name: str | None = None
    status: Literal["active", "suspended"] | None = None
    settings: SettingsChange = UNCHANGED


class TenantAccounts:
    """Every method raises StateUnavailable if PostgreSQL is away. `actor`: who makes a change, for the log."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(
        self, name: str, actor: str, *, adopted: str | None = None, settings: TenantSettings = NO_SETTINGS
    ) -> tuple[TenantAccount, Project]:
        """A new tenant with its default project. `adopted`: the id of a tenant whose data is stored already.

        Raises:
            InvalidRequest: the name or the settings are not valid.
            Conflict: a tenant has this name, or the adopted one has an account.
        """
        check_name(name, "name")
        if adopted is not None and not _ADOPTED.fullmatch(adopted):
            raise InvalidRequest("a tenant that is adopted has an id of 16 hexadecimal digits", "id", "invalid_value")
        stored = msgspec.to_builtins(checked_settings(settings))
        async with change_of(self._database, adopted or random_id(), actor) as transaction:
            await transaction.run(_SQL["add_tenant"])
            if await transaction.fetch_one(_SQL["account"]) is not None:
                raise Conflict(f"the tenant {transaction.tenant} has an account already", None, "tenant_exists")
            row = await transaction.fetch_one(_SQL["add_account"], name=name, settings=Jsonb(stored))
            assert row is not None
            made = TenantAccount.of_row(row)
            await transaction.note("tenant.create", made.id, None, made)
            return made, await _add_project(transaction, DEFAULT_PROJECT, NO_LIMITS, is_default=True)

    async def find(self, tenant: str) -> TenantAccount:
        """By id, or by name. Raises NotFound."""
        async with self._database.transaction(EVERY_TENANT) as connection:
            row = await fetch_one(connection, _SQL["account"], tenant=tenant)
            if row is None:
                named = await fetch_one(connection, _SQL["account_named"], name=tenant)
                if named is None:
                    raise not_found("tenant", tenant)
                row = await fetch_one(connection, _SQL["account"], tenant=named["tenant_id"])
                assert row is not None
        return TenantAccount.of_row(row)

    async def page(self, after: str | None, limit: int) -> Part[TenantAccount]:
        """Ordered by id. `after`: the id of the last one of the page before."""
        async with self._database.transaction(EVERY_TENANT) as connection:
            rows = await fetch_all(connection, _SQL["accounts"], after=after, limit=limit + 1)
        return Part([TenantAccount.of_row(row) for row in rows[:limit]], len(rows) > limit)

    async def suspend(self, tenant: str, actor: str) -> TenantAccount:
        """Refuse all requests of a tenant. Raises NotFound."""
        return await self.change(tenant, actor, TenantChange(status="suspended"))

    async def resume(self, tenant: str, actor: str) -> TenantAccount:
        """Raises NotFound."""
        return await self.change(tenant, actor, TenantChange(status="active"))

    async def change(self, tenant: str, actor: str, change: TenantChange) -> TenantAccount:
        """All of a change, or nothing. What changes nothing is not logged. Raises NotFound, InvalidRequest, and
        Conflict if another tenant has the name.
        """
        if change.name is not None:
            check_name(change.name, "name")
        async with change_of(self._database, tenant, actor) as transaction:
            row = await transaction.fetch_one(_SQL["lock_account"])
            if row is None:
                raise not_found("tenant", tenant)
            account = TenantAccount.of_row(row)
            for action, changed in _steps(change):
                old, account = account, changed(account)
                if account != old:
                    values = {"name": account.name, "status": account.status, "settings": Jsonb(account.settings)}
                    await transaction.run(_SQL["change_account"], **values)
                    await transaction.note(action, tenant, old, account)
            return account

    async def changes(self, tenant: str | None, before: int | None, limit: int) -> Part[AccountChange]:
        """The log of changes, the newest first. `tenant`: None for those of all. `before`: the sequence number of the
        last change of the page before.
        """
        async with self._database.transaction(EVERY_TENANT) as connection:
            rows = await fetch_all(connection, _SQL["changes"], tenant=tenant, before=before, limit=limit + 1)
        return Part([AccountChange.of_row(row) for row in rows[:limit]], len(rows) > limit)


class ProjectStore:
    """Every method raises StateUnavailable if PostgreSQL is away. `actor`: who makes a change, for the log."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, tenant: str, name: str, actor: str, limits: Limits = NO_LIMITS) -> Project:
        """Raises InvalidRequest, NotFound, and Conflict if another project of the tenant has this name."""
        check_name(name, "name")
        async with change_of(self._database, tenant, actor) as transaction:
            if await transaction.fetch_one(_SQL["account"]) is None:
                raise not_found("tenant", tenant)
            return await _add_project(transaction, name, limits, is_default=False)

    async def page(self, tenant: str, after: str | None, limit: int) -> Part[Project]:
        """Ordered by id. `after`: the id of the last one of the page before."""
        async with self._database.transaction(EVERY_TENANT) as connection:
            rows = await fetch_all(connection, _SQL["projects"], tenant=tenant, after=after, limit=limit + 1)
        return Part([Project.of_row(row) for row in rows[:limit]], len(rows) > limit)

    async def archive(self, project: str, actor: str) -> Project:
        """Refuse all requests of a project. Raises NotFound, and Conflict for the default project of a tenant."""
        return await self.change(project, actor, {}, archives=True)

    async def change(
        self, project: str, actor: str, limits: Mapping[str, LimitChange], *, archives: bool = False
    ) -> Project:
        """Change limits by name, and archive the project if `archives`: both, or nothing. What changes nothing is not
        logged. Raises NotFound, InvalidRequest, and Conflict for the default project of a tenant if it `archives`.
        """
        tenant = await tenant_of(self._database, _SQL["tenant_of_project"], project, "project")
        async with change_of(self._database, tenant, actor) as transaction:
            old = await locked_project(transaction, project)
            if archives and old.is_default:
                raise Conflict("the default project is never archived: suspend the tenant", None, "default_project")
            changed = old.limits
            if limits:
                known = as_stored(limits_of_stored, old.limits, f"project {project}")
                changed = msgspec.to_builtins(with_changes(known, limits))
            if changed != old.limits:
                new = await self._changed(transaction, old, changed, is_archived=old.archived_at is not None)
                await transaction.note("project.set", project, old, new)
                old = new
            if archives and old.archived_at is None:
                new = await self._changed(transaction, old, old.limits, is_archived=True)
                await transaction.note("project.archive", project, old, new)
                old = new
            return old

    async def _changed(
        self, transaction: AccountTransaction, old: Project, limits: dict[str, object], *, is_archived: bool
    ) -> Project:
        values = {"id": old.id, "name": old.name, "limits": Jsonb(limits), "is_archived": is_archived}
        row = await transaction.fetch_one(_SQL["change_project"], **values)
        assert row is not None
        return Project.of_row(row)


def _steps(change: TenantChange) -> Iterator[tuple[str, Callable[[TenantAccount], TenantAccount]]]:
    """What a change does, with its name in the log. A step raises InvalidRequest."""
    if change.name is not None:
        yield "tenant.rename", lambda old: msgspec.structs.replace(old, name=change.name)
    if change.settings != UNCHANGED:  # else settings that cannot be read would keep a tenant from being suspended
        yield "tenant.set", lambda old: _with_settings(old, change.settings)
    if change.status is not None:
        action = "tenant.suspend" if change.status == "suspended" else "tenant.resume"
        yield action, lambda old: msgspec.structs.replace(old, status=change.status)


def _with_settings(old: TenantAccount, change: SettingsChange) -> TenantAccount:
    """Raises InvalidRequest, ServingError."""
    settings = change.applied_to(as_stored(settings_of_stored, old.settings, f"tenant {old.id}"))
    return msgspec.structs.replace(old, settings=msgspec.to_builtins(settings))


async def locked_project(transaction: AccountTransaction, project: str | None) -> Project:
    """A project of the transaction's tenant. `project`: None for the default one. Raises NotFound."""
    if project is None:
        row = await transaction.fetch_one(_SQL["default_project"])
        if row is None:
            raise not_found("tenant", transaction.tenant)
    else:
        row = await transaction.fetch_one(_SQL["lock_project"], id=project)
        if row is None:
            raise not_found("project", project)
    return Project.of_row(row)


async def _add_project(transaction: AccountTransaction, name: str, limits: Limits, *, is_default: bool) -> Project:
    values = {"id": random_id("proj_"), "name": name, "is_default": is_default}
    row = await transaction.fetch_one(_SQL["add_project"], **values, limits=Jsonb(msgspec.to_builtins(limits)))
    assert row is not None
    made = Project.of_row(row)
    await transaction.note("project.create", made.id, None, made)
    return made

"""/admin/tenants, and the log of changes of all accounts. A path names a tenant by its id or its name."""

from datetime import datetime
from typing import Any, Literal

import msgspec
from fastapi import APIRouter, Request

from api.identity.settings import NO_SETTINGS, SettingsChange
from api.routes.admin.requests import (
    LimitsBody,
    accounts_of,
    actor_of,
    body_of,
    limit_changes,
    page_in_order,
    tenant_named,
)
from api.state.postgres.accounts.rows import AccountChange, TenantAccount
from api.state.postgres.accounts.tenant_accounts import TenantChange
from api.wire.pages import Part, listed
from cluster.errors import InvalidRequest
from cluster.messages.ids import SloClass

router = APIRouter(prefix="/admin")

CHANGE = "change_"
"""Prefix of the ids of entries of the log of changes. Their numbers follow."""
MAX_DIGITS = 18
"""Digits of such a number. All numbers of 18 digits fit PostgreSQL's bigint; more need not."""


class SettingsBody(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant's settings become. What is missing stays."""

    limits: LimitsBody = {}
    end_user_limits: LimitsBody = {}
    model_limits: dict[str, LimitsBody] = {}
    weight: float | None = None
    share_prefixes: bool | None = None
    best_class: SloClass | None = None

    def settings(self, request: Request) -> SettingsChange:
        """Raises InvalidRequest."""
        return SettingsChange(
            limits=limit_changes(request, self.limits),
            end_user_limits=limit_changes(request, self.end_user_limits),
            model_limits={model: limit_changes(request, limits) for model, limits in self.model_limits.items()},
            weight=self.weight,
            share_prefixes=self.share_prefixes,
            best_class=self.best_class,
        )


class NewTenantBody(SettingsBody, frozen=True, kw_only=True):
    name: str


class TenantBody(SettingsBody, frozen=True, kw_only=True):
    name: str | None = None
    status: Literal["active", "suspended"] | None = None


@router.post("/tenants")
async def create(request: Request) -> dict[str, Any]:
    """A tenant with its default project, and no key."""
    body, actor = await body_of(request, NewTenantBody), actor_of(request)
    settings = body.settings(request).applied_to(NO_SETTINGS)
    tenant, project = await accounts_of(request).tenants.create(body.name, actor, settings=settings)
    return {**_shown(tenant), "default_project_id": project.id}


@router.get("/tenants")
async def list_tenants(request: Request) -> dict[str, Any]:
    """Ordered by id."""
    page = page_in_order(request, "asc")
    found = await accounts_of(request).tenants.page(page.after, page.limit)
    return listed(Part([_shown(tenant) for tenant in found.data], found.has_more))


@router.get("/tenants/{tenant}")
async def retrieve(request: Request, tenant: str) -> dict[str, Any]:
    return _shown(await accounts_of(request).tenants.find(tenant))


@router.post("/tenants/{tenant}")
async def change(request: Request, tenant: str) -> dict[str, Any]:
    """All of the body or nothing. The status `suspended` refuses all requests of the tenant."""
    body, actor = await body_of(request, TenantBody), actor_of(request)
    changes = TenantChange(name=body.name, status=body.status, settings=body.settings(request))
    return _shown(await accounts_of(request).tenants.change(await tenant_named(request, tenant), actor, changes))


@router.get("/changes")
async def list_changes(request: Request) -> dict[str, Any]:
    """The newest first. `tenant_id` is a filter."""
    page, query = page_in_order(request, "desc"), request.query_params
    before = None if page.after is None else _number_of(page.after)
    tenant = await tenant_named(request, query["tenant_id"]) if "tenant_id" in query else None
    found = await accounts_of(request).tenants.changes(tenant, before, page.limit)
    return listed(Part([_shown_change(one) for one in found.data], found.has_more))


def unix(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp())


def _number_of(after: str) -> int:
    """Raises InvalidRequest."""
    number = after.removeprefix(CHANGE)
    if number == after or not (number.isascii() and number.isdigit() and len(number) <= MAX_DIGITS):
        raise InvalidRequest("after must be the id of an entry of this list", "after", "invalid_value")
    return int(number)


def _shown(tenant: TenantAccount) -> dict[str, Any]:
    settings = tenant.settings
    return {
        "id": tenant.id,
        "object": "tenant",
        "name": tenant.name,
        "status": tenant.status,
        "created_at": unix(tenant.created_at),
        "limits": settings.get("limits", {}),
        "end_user_limits": settings.get("end_user_limits", {}),
        "model_limits": settings.get("model_limits", {}),
        "weight": settings.get("weight", NO_SETTINGS.weight),
        "share_prefixes": settings.get("share_prefixes", NO_SETTINGS.share_prefixes),
        "best_class": settings.get("best_class", NO_SETTINGS.best_class),
    }


def _shown_change(one: AccountChange) -> dict[str, Any]:
    return {
        "id": f"{CHANGE}{one.sequence}",
        "object": "account.change",
        "created_at": unix(one.at),
        "tenant_id": one.tenant,
        "actor": one.actor,
        "action": one.action,
        "object_id": one.object,
        "before": one.before,
        "after": one.after,
    }

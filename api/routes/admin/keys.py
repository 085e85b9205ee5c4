"""/admin/tenants/{tenant}/keys and /admin/keys/{key}. The text of a key is in the answer that makes it, and nowhere
else.
"""

from typing import Any

import msgspec
from fastapi import APIRouter, Request
from msgspec import UNSET, UnsetType

from api.identity.keys import PREFIX
from api.identity.rights import DEFAULT_RIGHTS, rights_in
from api.identity.settings import NO_LIMITS, with_changes
from api.routes.admin.requests import (
    LimitsBody,
    accounts_of,
    actor_of,
    body_of,
    limit_changes,
    page_in_order,
    tenant_named,
)
from api.routes.admin.tenants import unix
from api.state.postgres.accounts.api_keys import OVERLAP_S, KeyChange, KeyTerms
from api.state.postgres.accounts.rows import ApiKey, IssuedKey
from api.wire.pages import Part, listed

router = APIRouter(prefix="/admin")


class NewKeyBody(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    project_id: str | None = None
    """None for the default project of the tenant."""
    rights: list[str] | None = None
    models: list[str] | None = None
    """None for all."""
    limits: LimitsBody = {}
    expires_at: float | None = None
    """Unix time. None for a key that does not expire."""


class KeyBody(msgspec.Struct, frozen=True, kw_only=True):
    """What is missing stays."""

    name: str | UnsetType = UNSET
    rights: list[str] | UnsetType = UNSET
    models: list[str] | UnsetType | None = UNSET
    limits: LimitsBody | UnsetType = UNSET
    expires_at: float | UnsetType | None = UNSET


class RotationBody(msgspec.Struct, frozen=True, kw_only=True):
    overlap_s: float = OVERLAP_S


@router.post("/tenants/{tenant}/keys")
async def create(request: Request, tenant: str) -> dict[str, Any]:
    body, actor = await body_of(request, NewKeyBody), actor_of(request)
    terms = KeyTerms(
        name=body.name,
        project=body.project_id,
        rights=DEFAULT_RIGHTS if body.rights is None else rights_in(body.rights),
        models=None if body.models is None else frozenset(body.models),
        limits=with_changes(NO_LIMITS, limit_changes(request, body.limits)),
        expires_at=body.expires_at,
    )
    return _shown_issued(await accounts_of(request).keys.create(await tenant_named(request, tenant), terms, actor))


@router.get("/tenants/{tenant}/keys")
async def list_keys(request: Request, tenant: str) -> dict[str, Any]:
    """The oldest first. `project_id` is a filter."""
    page, project = page_in_order(request, "asc"), request.query_params.get("project_id")
    keys = accounts_of(request).keys
    found = await keys.page(await tenant_named(request, tenant), project, page.after, page.limit)
    return listed(Part([_shown(key) for key in found.data], found.has_more))


@router.post("/keys/{key}")
async def change(request: Request, key: str) -> dict[str, Any]:
    """`models: null` lets the key use all models, and `expires_at: null` lets it never end."""
    body, actor = await body_of(request, KeyBody), actor_of(request)
    changes = KeyChange(
        name=body.name,
        rights=UNSET if body.rights is UNSET else rights_in(body.rights),
        models=frozenset(body.models) if isinstance(body.models, list) else body.models,
        limits=UNSET if body.limits is UNSET else limit_changes(request, body.limits),
        expires_at=body.expires_at,
    )
    return _shown(await accounts_of(request).keys.change(key, changes, actor))


@router.post("/keys/{key}/rotate")
async def rotate(request: Request, key: str) -> dict[str, Any]:
    """A key with the same terms. The old one goes on for `overlap_s`."""
    body, actor = await body_of(request, RotationBody), actor_of(request)
    return _shown_issued(await accounts_of(request).keys.rotate(key, actor, body.overlap_s))


@router.delete("/keys/{key}")
async def revoke(request: Request, key: str) -> dict[str, Any]:
    """Refuse a key for good. Lists go on to show it."""
    return _shown(await accounts_of(request).keys.revoke(key, actor_of(request)))


def _shown_issued(issued: IssuedKey) -> dict[str, Any]:
    return {**_shown(issued.key), "value": issued.text}


def _shown(key: ApiKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "object": "api_key",
        "tenant_id": key.tenant,
        "project_id": key.project,
        "name": key.name,
        "redacted_value": f"{PREFIX}{key.handle}-…",
        "rights": key.rights,
        "models": key.models,
        "limits": key.limits,
        "created_at": unix(key.created_at),
        "expires_at": unix(key.expires_at),
        "revoked_at": unix(key.revoked_at),
        "rotated_to": key.rotated_to,
        "last_used_at": unix(key.last_used_at),
    }

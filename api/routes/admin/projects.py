"""/admin/tenants/{tenant}/projects and /admin/projects/{project}."""

from typing import Any, Literal

import msgspec
from fastapi import APIRouter, Request

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
from api.state.postgres.accounts.rows import Project
from api.wire.pages import Part, listed

router = APIRouter(prefix="/admin")


class NewProjectBody(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    limits: LimitsBody = {}


class ProjectBody(msgspec.Struct, frozen=True, kw_only=True):
    limits: LimitsBody = {}
    status: Literal["archived"] | None = None
    """A project that is archived stays archived."""


@router.post("/tenants/{tenant}/projects")
async def create(request: Request, tenant: str) -> dict[str, Any]:
    body, actor = await body_of(request, NewProjectBody), actor_of(request)
    limits = with_changes(NO_LIMITS, limit_changes(request, body.limits))
    projects = accounts_of(request).projects
    return _shown(await projects.create(await tenant_named(request, tenant), body.name, actor, limits))


@router.get("/tenants/{tenant}/projects")
async def list_projects(request: Request, tenant: str) -> dict[str, Any]:
    """Ordered by id."""
    page = page_in_order(request, "asc")
    found = await accounts_of(request).projects.page(await tenant_named(request, tenant), page.after, page.limit)
    return listed(Part([_shown(project) for project in found.data], found.has_more))


@router.post("/projects/{project}")
async def change(request: Request, project: str) -> dict[str, Any]:
    """All of the body or nothing. The status `archived` refuses all requests of the project, for good."""
    body, actor = await body_of(request, ProjectBody), actor_of(request)
    changes = limit_changes(request, body.limits)
    return _shown(await accounts_of(request).projects.change(project, actor, changes, archives=body.status is not None))


def _shown(project: Project) -> dict[str, Any]:
    return {
        "id": project.id,
        "object": "project",
        "tenant_id": project.tenant,
        "name": project.name,
        "is_default": project.is_default,
        "status": "active" if project.archived_at is None else "archived",
        "created_at": unix(project.created_at),
        "archived_at": unix(project.archived_at),
        "limits": project.limits,
    }

"""GET /admin/usage and GET /admin/costs: what all tenants have used, as GET /v1/organization/... shows it to one."""

import time
from typing import Any

from fastapi import APIRouter, Request

from api.routes.services import services_of
from api.state.lifecycle import ChatState
from api.state.postgres.database import EVERY_TENANT
from api.wire.organization.usage import Sums, UsageQuery, costs_page, costs_query, usage_page, usage_query

router = APIRouter(prefix="/admin")


@router.get("/usage")
async def usage(request: Request) -> dict[str, Any]:
    query = usage_query(request.query_params.multi_items(), time.time(), of_all=True)
    return usage_page(query, await _sums(request, query))


@router.get("/costs")
async def costs(request: Request) -> dict[str, Any]:
    query = costs_query(request.query_params.multi_items(), time.time(), of_all=True)
    return costs_page(query, await _sums(request, query))


async def _sums(request: Request, query: UsageQuery) -> list[Sums]:
    """Raises InvalidRequest, StateUnavailable."""
    state: ChatState = services_of(request).chat_state
    return await state.stores.usage.sums(EVERY_TENANT, query.on_page())

"""GET /v1/organization/usage/completions and GET /v1/organization/costs: what a tenant has used, in OpenAI's shape. The
organization is the tenant.
"""

import time
from typing import Any

from fastapi import APIRouter, Request

from api.identity.rights import Right
from api.identity.route_rights import needs
from api.identity.tenants import tenant_in_state
from api.routes.counted_requests import counted
from api.routes.services import services_of
from api.state.lifecycle import ChatState
from api.wire.organization.usage import Sums, UsageQuery, costs_page, costs_query, usage_page, usage_query

router = APIRouter(prefix="/v1/organization")


@router.get("/usage/completions")
@needs(Right.USAGE_READ)
@counted
async def usage(request: Request) -> dict[str, Any]:
    """Tell how many requests and tokens the tenant has used, by time."""
    query = usage_query(request.query_params.multi_items(), time.time())
    return usage_page(query, await _sums(request, query))


@router.get("/costs")
@needs(Right.USAGE_READ)
@counted
async def costs(request: Request) -> dict[str, Any]:
    """Tell what the tenant has to pay, by time."""
    query = costs_query(request.query_params.multi_items(), time.time())
    return costs_page(query, await _sums(request, query))


async def _sums(request: Request, query: UsageQuery) -> list[Sums]:
    """Raises InvalidRequest, StateUnavailable."""
    state: ChatState = services_of(request).chat_state
    return await state.stores.usage.sums(tenant_in_state(request), query.on_page())

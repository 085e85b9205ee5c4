"""Reads that are answered from copies while what is remembered cannot be reached."""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from api.routes.services import services_of
from api.wire.pages import Page

STALE_HEADER = "x-baton-stale"
"""Of a response that is a copy: how many seconds ago it was so."""


async def answer_or_copy(
    request: Request, tenant: str, scope: str, name: str | None, ask: Callable[[], Awaitable[dict[str, Any]]]
) -> Response:
    """`scope`: the conversation or response whose deletion ends the copies. `name`: of the copy in it; None for what is
    not kept. Raises what `ask` raises.
    """
    if name is None:
        return JSONResponse(await ask())
    found = await services_of(request).chat_state.cache.read(tenant, scope, name, ask)
    headers = None if found.age_s is None else {STALE_HEADER: str(round(found.age_s))}
    return JSONResponse(found.body, headers=headers)


def first_page(page: Page) -> str | None:
    """Its name as a copy; None for a later one."""
    return None if page.after else f"{page.limit} {'newest' if page.newest_first else 'oldest'} first"

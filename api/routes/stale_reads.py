"""Stale reads: answers from copies while PostgreSQL cannot be reached."""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from api.routes.services import services_of
from api.wire import response_headers
from api.wire.pages import Page


async def answer_or_copy(
    request: Request, tenant: str, scope: str, name: str | None, ask: Callable[[], Awaitable[dict[str, Any]]]
) -> Response:
    """The answer of `ask`, or a copy of an earlier answer if PostgreSQL cannot be reached.

    `scope` is the conversation or response whose deletion also deletes the copies. `name` is the name of the copy in
    the scope; None if no copy is kept. Raises the errors of `ask`.
    """
    if name is None:
        return JSONResponse(await ask())
    found = await services_of(request).chat_state.cache.read(tenant, scope, name, ask)
    headers = None if found.age_s is None else {response_headers.STALE: str(round(found.age_s))}
    return JSONResponse(found.body, headers=headers)


def first_page(page: Page) -> str | None:
    """The name of a list's first page as a copy; None for a later page, of which no copy is kept."""
    return None if page.after else f"{page.limit} {'newest' if page.newest_first else 'oldest'} first"

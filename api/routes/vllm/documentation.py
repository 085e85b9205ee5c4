"""GET /openapi.json and /docs: the public port, described from its own routes. The page is made from the document, and
loads nothing.
"""

import asyncio
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
from fastapi import APIRouter, Request, Response
from starlette.routing import WebSocketRoute

from api.identity.route_rights import needed_by
from api.openapi.document import document_of
from api.openapi.operation import PublicRoute
from api.openapi.page import HEADERS, page_of
from api.openapi.vllm_schemas import vllm_schemas
from api.routes.vllm.described import DESCRIBED
from cluster.repository import own_version


class _Made(NamedTuple):
    document: bytes
    page: bytes


class Documentation:
    """The document and its page, which the first request makes for all."""

    def __init__(self) -> None:
        self._making: asyncio.Task[_Made] | None = None

    @property
    def router(self) -> APIRouter:
        router = APIRouter()
        router.add_route("/openapi.json", self.openapi, methods=["GET"])
        router.add_route("/docs", self.docs, methods=["GET"])
        return router

    async def openapi(self, request: Request) -> Response:
        """Describe the public port in OpenAPI's terms."""
        return Response((await self._made(request)).document, media_type="application/json")

    async def docs(self, request: Request) -> Response:
        """Describe the public port on a page."""
        return Response((await self._made(request)).page, media_type="text/html", headers=HEADERS)

    async def _made(self, request: Request) -> _Made:
        if self._making is None:
            self._making = asyncio.create_task(asyncio.to_thread(_made_of, request.app.routes))
        return await asyncio.shield(self._making)  # a client that leaves must not end it for others


def public_routes(routes: Iterable[Any]) -> list[PublicRoute]:
    """Each route with each of its methods. HEAD goes without saying, and OpenAPI has no words for WebSockets."""
    of_http = (route for route in routes if not isinstance(route, WebSocketRoute))
    return [
        PublicRoute(method, route.path_format, route.endpoint, needed_by(route.endpoint))
        for route in of_http
        for method in sorted(route.methods - {"HEAD"})
    ]


def _made_of(routes: Iterable[Any]) -> _Made:
    document = document_of(public_routes(routes), DESCRIBED, vllm_schemas(), own_version())
    return _Made(msgspec.json.encode(document), page_of(document).encode())

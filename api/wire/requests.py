"""What every route reads of a request: who asks, and the JSON of its body."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from fastapi import Request

from api.wire.tenants import tenant_of_key
from cluster.errors import InvalidRequest, RequestTooLarge

T = TypeVar("T")

LARGE_BYTES, LARGE_ITEMS = 256 << 10, 500
"""A body or an input with more takes long to check."""


def tenant_of(request: Request) -> str:
    """Whoever has the same API key is the same tenant. Its name does not give the key away."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        return ""
    return tenant_of_key(key.strip())


async def json_of(request: Request) -> Any:
    """Raises InvalidRequest; RequestTooLarge before more than that is in memory."""
    try:
        body = await _body(request, request.app.state.max_body_bytes)
        request.state.is_large = len(body) > LARGE_BYTES
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the request body is not valid JSON: {error}", None, "invalid_json") from error


async def object_of(request: Request, known: frozenset[str]) -> dict[str, Any]:
    """A body with these fields alone; none at all counts as an empty one. Raises InvalidRequest."""
    has_body = request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
    body = await json_of(request) if has_body else {}
    if not isinstance(body, dict):
        raise InvalidRequest("the request body must be a JSON object", None, "invalid_type")
    if unknown := sorted(body.keys() - known):
        raise InvalidRequest(f"unknown parameter: {unknown[0]}", unknown[0], "unknown_parameter")
    return body


async def checked(request: Request, items: Any, check: Callable[[], T]) -> T:
    """What `check` makes of a body that has been read, and these items; in a thread where that takes long."""
    is_large = getattr(request.state, "is_large", False) or (isinstance(items, list) and len(items) > LARGE_ITEMS)
    return await asyncio.to_thread(check) if is_large else check()


async def _body(request: Request, max_bytes: int) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise RequestTooLarge(f"the request body has more than {max_bytes} bytes", None, "request_too_large")
    return bytes(body)

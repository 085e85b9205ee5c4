"""What every route reads of a request: who asks, and the JSON of its body."""

from typing import Any

import msgspec
from fastapi import Request

from api.wire.tenants import tenant_of_key
from cluster.errors import InvalidRequest, RequestTooLarge


def tenant_of(request: Request) -> str:
    """Whoever has the same API key is the same tenant. Its name does not give the key away."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        return ""
    return tenant_of_key(key.strip())


async def json_of(request: Request) -> Any:
    """Raises InvalidRequest; RequestTooLarge before more than that is in memory."""
    try:
        return msgspec.json.decode(await _body(request, request.app.state.max_body_bytes))
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


async def _body(request: Request, max_bytes: int) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise RequestTooLarge(f"the request body has more than {max_bytes} bytes", None, "request_too_large")
    return bytes(body)

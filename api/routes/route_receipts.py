"""GET /baton/receipts?last=N&http_request=ID: where the last requests ran, or those of one HTTP request, why, what was
predicted, and how it came out. For debugging: of one ingress replica, and only where `ingress.keep_receipts` allows it.
"""

from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from api.routes.services import services_of
from cluster.errors import InvalidRequest, NotFound

router = APIRouter(prefix="/baton")

DEFAULT_LAST = 10
MAX_LAST = 1000
"""Receipts in one answer, in number. They are put together on the event loop, some 16 us each: more holds up all
requests of the replica, fewer has an operator ask more often.
"""


@router.get("/receipts")
async def receipts(request: Request) -> Response:
    services = services_of(request)
    if services.config.keep_receipts == 0:
        raise NotFound("receipts are not kept here: ingress.keep_receipts is 0", None, "unknown_url")
    found = services.receipts.last(_number(request), request.query_params.get("http_request"))
    shown = [{**_named(receipt), "result": receipt.result} for receipt in found]
    return Response(msgspec.json.encode({"receipts": shown}), media_type="application/json")


def _number(request: Request) -> int:
    """Raises InvalidRequest."""
    text = request.query_params.get("last", str(DEFAULT_LAST))
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MAX_LAST)) and int(text) <= MAX_LAST):
        raise InvalidRequest(f"last must be a number, at most {MAX_LAST}", "last", "invalid_value")
    return int(text)


def _named(value: Any) -> Any:
    """With the names of all fields: on the wire between processes many structs are arrays."""
    if isinstance(value, msgspec.Struct):
        return {name: _named(field) for name, field in msgspec.structs.asdict(value).items()}
    if isinstance(value, tuple | list):
        return [_named(item) for item in value]
    return value

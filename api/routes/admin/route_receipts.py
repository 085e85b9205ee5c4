"""GET /baton/receipts?last=N&http_request=ID: the last route receipts, of all requests or of one HTTP request.

The route is for debugging. It shows the receipts of one ingress replica, as many as `ingress.keep_receipts` keeps.
"""

from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from api.routes.services import services_of
from cluster.errors import InvalidRequest, NotFound

router = APIRouter(prefix="/baton")

DEFAULT_LAST = 10
"""Receipts in an answer to a request without `last`, in number."""
MAX_LAST = 1000
"""Most receipts in one answer, in number. A receipt is encoded on the event loop in about 16 us. A higher value blocks
the event loop for longer; with a lower value, an operator needs more calls.
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
    """The number of receipts that the request asks for. Raises InvalidRequest."""
    text = request.query_params.get("last", str(DEFAULT_LAST))
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MAX_LAST)) and int(text) <= MAX_LAST):
        raise InvalidRequest(f"last must be a number, at most {MAX_LAST}", "last", "invalid_value")
    return int(text)


def _named(value: Any) -> Any:
    """The value with the names of all fields: msgspec would encode some structs as arrays (`array_like`)."""
    if isinstance(value, msgspec.Struct):
        return {name: _named(field) for name, field in msgspec.structs.asdict(value).items()}
    if isinstance(value, tuple | list):
        return [_named(item) for item in value]
    return value

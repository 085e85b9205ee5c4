"""Route receipts, for debugging. As many are kept as `ingress.keep_receipts` says.

- GET /baton/receipts?last=N&http_request=ID: the last ones of this ingress replica, of all requests or of one HTTP
  request.
- GET /baton/receipts/ID: those of one session, by its id, or of one HTTP request, by its `x-request-id`, of whichever
  ingress replica had them; the latest first, each also as a waterfall. `baton trace` prints it.
"""

from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from api.edge.request_id import MAX_CHARS
from api.routes.services import IngressServices, services_of
from cluster.errors import RECEIPT_NOT_FOUND, InvalidRequest, NotFound
from router.session.receipt import RouteReceipt
from router.session.waterfall import waterfall_of

router = APIRouter(prefix="/baton")

DEFAULT_LAST = 10
"""Receipts in an answer to a request without `last`, in number."""
MAX_LAST = 1000
"""Most receipts in one answer, in number. A receipt is encoded on the event loop in about 16 us. A higher value blocks
the event loop for longer; with a lower value, an operator needs more calls.
"""


@router.get("/receipts")
async def receipts(request: Request) -> Response:
    services = _keeping(request)
    found = services.receipts.kept.last(_number(request), request.query_params.get("http_request"))
    return _json({"receipts": [_shown(receipt) for receipt in found]})


@router.get("/receipts/{name:path}")
async def receipts_named(request: Request, name: str) -> Response:
    services = _keeping(request)
    found = await services.cluster.receipts(name) if len(name) <= MAX_CHARS else []
    if not found:
        raise NotFound("no kept receipt has this id", None, RECEIPT_NOT_FOUND)
    known = [(kept, kept.receipt()) for kept in found]
    shown = [{**_shown(receipt), "closed_at": kept.closed_at} for kept, receipt in known]
    return _json({"receipts": shown, "waterfalls": [waterfall_of(receipt) for _, receipt in known]})


def _keeping(request: Request) -> IngressServices:
    """Raises NotFound if no receipts are kept."""
    services = services_of(request)
    if services.config.keep_receipts == 0:
        raise NotFound("receipts are not kept here: ingress.keep_receipts is 0", None, "unknown_url")
    return services


def _shown(receipt: RouteReceipt) -> dict[str, Any]:
    return {**_named(receipt), "result": receipt.result}


def _json(body: object) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")


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

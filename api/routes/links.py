"""GET /baton/links: how each prefill worker's KV blocks reach each decode worker. What `baton probe` prints."""

import msgspec
from fastapi import APIRouter, Request, Response

from api.routes.services import services_of
from kvtransfer.transport.link_table import table_of

router = APIRouter(prefix="/baton")


@router.get("/links")
async def links(request: Request) -> Response:
    table = table_of(await services_of(request).cluster.view())
    return Response(msgspec.json.encode(table), media_type="application/json")

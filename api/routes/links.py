"""GET /baton/links: the transport from each prefill worker to each decode worker. `baton probe` prints this table."""

import msgspec
from fastapi import APIRouter, Request, Response

from api.routes.services import services_of
from kvtransfer.transport.link_table import table_of

router = APIRouter(prefix="/baton")


@router.get("/links")
async def links(request: Request) -> Response:
    table = table_of(await services_of(request).cluster.view())
    return Response(msgspec.json.encode(table), media_type="application/json")

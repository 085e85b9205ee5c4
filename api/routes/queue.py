"""GET /baton/queue: the requests that wait for a placement, in the order of service, with their expected waits."""

import msgspec
from fastapi import APIRouter, Request, Response

from api.routes.services import services_of

router = APIRouter(prefix="/baton")


@router.get("/queue")
async def queue(request: Request) -> Response:
    waiting = await services_of(request).cluster.queue()
    return Response(msgspec.json.encode({"waiting": waiting}), media_type="application/json")

"""What the Scheduler, or the Schedulers of all cells, know now.

- GET /baton/cells: the cells. `baton cells` prints this table.
- GET /baton/links: the transport from each prefill worker to each decode worker. `baton probe` prints this table.
- GET /baton/queue: the requests that wait for a placement, in the order of service, with their expected waits.
"""

import msgspec
from fastapi import APIRouter, Request, Response

from api.routes.services import services_of
from kvtransfer.transport.link_table import table_of

router = APIRouter(prefix="/baton")


@router.get("/cells")
async def cells(request: Request) -> Response:
    return _json(await services_of(request).cluster.cells())


@router.get("/links")
async def links(request: Request) -> Response:
    return _json(table_of(await services_of(request).cluster.view()))


@router.get("/queue")
async def queue(request: Request) -> Response:
    return _json({"waiting": await services_of(request).cluster.queue()})


def _json(body: object) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")

"""What the Scheduler, or the Schedulers of all cells, know now.

- GET /baton/cells: the cells. `baton cells` prints this table.
- GET /baton/links: the transport from each prefill worker to each decode worker. `baton probe` prints this table.
- GET /baton/queue: the requests that wait for a placement, in the order of service, with their expected waits.
- GET /baton/status: all of that and more, for `baton status` and `baton why`.
"""

import time
from contextlib import suppress

import msgspec
from fastapi import APIRouter, Request, Response

from api.routes.services import services_of
from cluster.errors import ServingError
from cluster.messages.operations import SchedulerStatus, ServiceStatus
from kvtransfer.transport.link_table import table_of

router = APIRouter(prefix="/baton")

STARTED_AT = time.monotonic()
"""When this process has loaded the routes, in seconds."""


@router.get("/cells")
async def cells(request: Request) -> Response:
    return _json(await services_of(request).cluster.cells())


@router.get("/links")
async def links(request: Request) -> Response:
    return _json(table_of(await services_of(request).cluster.view()))


@router.get("/queue")
async def queue(request: Request) -> Response:
    return _json({"waiting": await services_of(request).cluster.queue()})


@router.get("/status")
async def status(request: Request) -> Response:
    """Also while no Scheduler answers: the ingress replicas then place by themselves."""
    services, settings = services_of(request), request.app.state.settings
    cells, schedulers = await services.cluster.cells(), list[SchedulerStatus]()
    with suppress(ServingError):
        schedulers = await services.cluster.statuses()
    return _json(
        ServiceStatus(
            application=cells.application,
            settings=settings,
            replica_up_s=time.monotonic() - STARTED_AT,
            schedulers=schedulers,
            cells=cells.cells,
            stores=services.chat_state.store_statuses(),
        )
    )


def _json(body: object) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")

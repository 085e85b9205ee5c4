"""GET /healthz, /readyz and /metrics."""

import asyncio

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from api.edge.capacity import Capacity, Standstill
from api.routes.services import services_of

router = APIRouter()


STANDSTILL_S = 10.0
"""A replica that has been full for so long without one of its requests ending refuses everybody. Sooner would take out
replicas that are only busy, all at the same time.
"""


@router.api_route("/healthz", methods=["GET", "HEAD"])
async def healthz(request: Request) -> Response:
    """This ingress replica answers, and takes requests."""
    capacity: Capacity = services_of(request).capacity
    standstill: Standstill = services_of(request).standstill
    stands_still = standstill.lasts_s(asyncio.get_running_loop().time()) > STANDSTILL_S
    body = {
        "status": "full" if stands_still else "ok",
        "open_sequences": capacity.num_held,
        "max_ongoing_requests": capacity.most,
    }
    return JSONResponse(body, status_code=503 if stands_still else 200)


@router.get("/readyz")
async def readyz(request: Request) -> Response:
    """Both pools can serve: a prefill worker can hand over to a decode worker."""
    view = await services_of(request).cluster.view()
    body = {
        "ready": view.is_ready,
        "prefill_workers": view.num_prefill,
        "decode_workers": view.num_decode,
        "connected_pairs": view.num_links,
    }
    return JSONResponse(body, status_code=200 if view.is_ready else 503)


@router.get("/metrics")
async def scrape(request: Request) -> Response:
    """Prometheus text for the whole application."""
    return Response(await services_of(request).cluster.metrics_page(), media_type="text/plain; version=0.0.4")

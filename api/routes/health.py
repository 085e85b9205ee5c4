"""GET /healthz, which both ports have, GET /readyz, and HEAD /."""

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from api.edge.capacity import Capacity, Standstill
from api.routes.services import services_of

liveness, router = APIRouter(), APIRouter()

STANDSTILL_S = 10.0
"""Time after which a replica that is full, and in which no request ends, counts as unhealthy, in seconds. A lower value
takes replicas out of service that are only busy, possibly all at once. With a higher value, a replica that is stuck
refuses clients for longer.
"""


@liveness.api_route("/healthz", methods=["GET", "HEAD"])
async def healthz(request: Request) -> Response:
    """Tell whether this ingress replica answers and takes requests."""
    capacity: Capacity = services_of(request).capacity
    standstill: Standstill = services_of(request).standstill
    stands_still = standstill.lasts_s(asyncio.get_running_loop().time()) > STANDSTILL_S
    body = {
        "status": "full" if stands_still else "ok",
        "open_sequences": capacity.num_held,
        "max_ongoing_requests": capacity.most,
    }
    return JSONResponse(body, status_code=503 if stands_still else 200)


@router.head("/")
async def presence(request: Request) -> Response:
    """Tell that something answers here. Claude Code asks before its first request."""
    return Response()


@router.get("/readyz")
async def readyz(request: Request) -> Response:
    """Tell whether the cluster can serve: a prefill worker can hand KV blocks to a decode worker. `mismatch` tells why
    none ever can, if the engines of the pools do not fit. With several cells, one that takes requests is enough, and
    `cells` tells the state of each.
    """
    readiness = await services_of(request).cluster.readiness()
    body: dict[str, Any] = {
        "ready": readiness.is_ready,
        "prefill_workers": readiness.num_prefill,
        "decode_workers": readiness.num_decode,
        "connected_pairs": readiness.num_links,
    }
    if readiness.mismatch is not None:
        body["mismatch"] = readiness.mismatch
    if readiness.cells is not None:
        body["cells"] = readiness.cells
    return JSONResponse(body, status_code=200 if readiness.is_ready else 503)

"""GET /healthz, /readyz and /metrics."""

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

router = APIRouter()


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """This ingress replica answers."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(request: Request) -> Response:
    """Both pools can serve: a prefill worker can hand over to a decode worker."""
    view = await request.app.state.cluster.view()
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
    return Response(await request.app.state.cluster.metrics_page(), media_type="text/plain; version=0.0.4")

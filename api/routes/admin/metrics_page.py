"""GET /metrics: the page that Prometheus reads."""

from fastapi import APIRouter, Request, Response

from api.routes.services import services_of

router = APIRouter()


@router.get("/metrics")
async def scrape(request: Request) -> Response:
    """The metrics of the whole application, as Prometheus text."""
    return Response(await services_of(request).cluster.metrics_page(), media_type="text/plain; version=0.0.4")

"""GET /baton/live: what the page shows, in one document (api/web/live_document.py)."""

from fastapi import APIRouter, Request, Response

from api.web.live import LiveDocuments

router = APIRouter(prefix="/baton")


@router.get("/live")
async def live(request: Request) -> Response:
    documents: LiveDocuments = request.app.state.live
    return Response(await documents.get(), media_type="application/json")

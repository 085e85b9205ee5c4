"""GET /v1/models and /v1/models/{id}."""

from typing import Any

from fastapi import APIRouter, Request

from api.identity.rights import Right
from api.identity.route_rights import needs
from api.identity.tenants import principal_of
from api.routes.services import services_of
from cluster.errors import NotFound

router = APIRouter(prefix="/v1")


@router.get("/models")
@needs(Right.INFERENCE)
async def list_models(request: Request) -> dict[str, Any]:
    """List the served models. Models that the credential may not use are left out."""
    return {"object": "list", "data": await _cards(request)}


@router.get("/models/{model:path}")
@needs(Right.INFERENCE)
async def retrieve_model(request: Request, model: str) -> dict[str, Any]:
    """Answer with a served model that the credential may use."""
    for card in await _cards(request):
        if card["id"] == model:
            return dict(card)
    raise NotFound(f"the model '{model}' does not exist", "model", "model_not_found")


async def _cards(request: Request) -> list[dict[str, Any]]:
    principal = principal_of(request)
    return [card for card in await services_of(request).frontend.models() if principal.may_use(card["id"])]

"""GET /v1/models and /v1/models/{id}."""

from typing import Any

from fastapi import APIRouter, Request

from api.routes.services import services_of
from cluster.errors import NotFound

router = APIRouter(prefix="/v1")


@router.get("/models")
async def list_models(request: Request) -> dict[str, Any]:
    return {"object": "list", "data": await services_of(request).frontend.models()}


@router.get("/models/{model:path}")
async def retrieve_model(request: Request, model: str) -> dict[str, Any]:
    for card in await services_of(request).frontend.models():
        if card["id"] == model:
            return dict(card)
    raise NotFound(f"the model '{model}' does not exist", "model", "model_not_found")

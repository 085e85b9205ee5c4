"""POST /tokenize and /detokenize, as vLLM's server has them. OpenAI lacks them, so they are not below /v1."""

from fastapi import APIRouter, Request, Response

from api.identity.rights import Right
from api.identity.route_rights import needs
from api.identity.tenants import principal_of
from api.routes.call_headers import check_constraints_of
from api.routes.counted_requests import counted
from api.routes.services import services_of
from api.server.json_body import json_of

router = APIRouter()


@needs(Right.INFERENCE)
@counted
async def tokenize(request: Request) -> Response:
    """List the tokens of a prompt, or of the prompt that messages make. Nothing is generated."""
    body = await json_of(request)
    principal_of(request).require_model(body.get("model") if isinstance(body, dict) else None)
    await check_constraints_of(request, body)
    return _json(await services_of(request).frontend.tokenization.tokenized(body))


@needs(Right.INFERENCE)
@counted
async def detokenize(request: Request) -> Response:
    """Answer with the text of tokens."""
    body = await json_of(request)
    principal_of(request).require_model(body.get("model") if isinstance(body, dict) else None)
    return _json(await services_of(request).frontend.tokenization.detokenized(body))


router.add_route("/tokenize", tokenize, methods=["POST"])
router.add_route("/detokenize", detokenize, methods=["POST"])


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")

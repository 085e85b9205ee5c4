"""POST /v1/chat/completions and /v1/completions: completions are generated.

The routes of completions that were stored before are in api/routes/stored/stored_completions.py.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from api.completions.store_writer import StoredAnswer
from api.completions.stored_request import wants_store
from api.frontend.frontend import Frames
from api.frontend.generation import Call
from api.frontend.vllm_errors import error_in_frame
from api.identity.rights import Right
from api.identity.route_rights import needs
from api.identity.tenants import principal_of, tenant_in_state
from api.routes.call_headers import call_of, check_constraints_of, headers_of, hold_sequences
from api.routes.services import services_of
from api.server.event_stream import EventStream
from api.server.json_body import json_of
from api.wire.public_bodies import public
from api.wire.slo import tier_of

Answer = Callable[[Any, Call], Awaitable[dict[str, Any] | Frames]]


@needs(Right.INFERENCE)
async def create_chat_completion(request: Request) -> Response:
    """Generate the next message of a chat. It is stored if `store` is true."""
    body = await json_of(request)
    await check_constraints_of(request, body)
    hold_sequences(request, body)
    call = call_of(request, body)
    keeping = None
    if wants_store(body):
        principal_of(request).require(Right.STATE_WRITE, ', or send "store": false')
        writer = services_of(request).completion_writer
        keeping = StoredAnswer(writer, tenant_in_state(request), body, tier_of(call.terms.slo_class))
    return await _answered(request, body, call, services_of(request).frontend.chat_completion, keeping)


@needs(Right.INFERENCE)
async def create_completion(request: Request) -> Response:
    """Generate what follows a text."""
    body = await json_of(request)
    await check_constraints_of(request, body)
    hold_sequences(request, body)
    return await _answered(request, body, call_of(request, body), services_of(request).frontend.completion)


# `add_route` adds Starlette's routes: FastAPI's own would resolve dependencies for each request, and there are none.
router = APIRouter()
router.add_route("/v1/chat/completions", create_chat_completion, methods=["POST"])
router.add_route("/v1/completions", create_completion, methods=["POST"])


async def _answered(
    request: Request, body: Any, call: Call, answer: Answer, keeping: StoredAnswer | None = None
) -> Response:
    result = await answer(body if keeping is None else keeping.body, call)
    if isinstance(result, dict):
        if "service_tier" in result:  # vLLM always sets null
            result["service_tier"] = tier_of(call.terms.slo_class)
        shown = public(result)
        return JSONResponse(shown if keeping is None else await keeping.whole(shown), headers=headers_of(call))
    return EventStream(
        result if keeping is None else keeping.passed_on(result),
        error_in=lambda frame: error_in_frame(frame, call.error),
        headers_of_status=lambda: headers_of(call),
        keep_alive_s=services_of(request).config.keep_alive_s,
    )

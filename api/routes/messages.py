"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages API, answered by chat completions."""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from api.edge.request_id import HTTP_REQUEST
from api.identity.rights import Right
from api.identity.route_rights import needs
from api.identity.tenants import principal_of
from api.routes.call_headers import call_of, check_constraints_of, headers_of
from api.routes.counted_requests import counted
from api.routes.services import services_of
from api.server.event_stream import EventStream
from api.server.json_body import checked, json_of
from api.wire.messages.answer import PING
from api.wire.messages.errors import error_event
from api.wire.messages.surface import PREFIX


@needs(Right.INFERENCE)
async def create_message(request: Request) -> Response:
    """Answer a message of Anthropic's Messages API."""
    body, services = await json_of(request), services_of(request)
    translator = services.frontend.messages
    asked = await checked(request, _messages_in(body), lambda: translator.asked(body))
    await check_constraints_of(request, asked.chat)
    call = call_of(request, asked.chat)
    answer = await services.frontend.chat_completion(asked.chat, call)
    if isinstance(answer, dict):
        return JSONResponse(translator.message(answer, call, asked.max_tokens), headers=headers_of(call))
    return EventStream(
        translator.events(answer, call, asked.max_tokens),
        error_in=lambda _: None,
        headers_of_status=lambda: headers_of(call),
        keep_alive_s=services.config.keep_alive_s,
        error_frame=partial(error_event, request_id=HTTP_REQUEST.get()),
        terminal_frame=b"",
        keep_alive=PING,
    )


@needs(Right.INFERENCE)
@counted
async def count_tokens(request: Request) -> Response:
    """The number of tokens of the prompt that a message would have."""
    body, frontend = await json_of(request), services_of(request).frontend
    chat = await checked(request, _messages_in(body), lambda: frontend.messages.counted(body))
    await check_constraints_of(request, chat)
    principal_of(request).require_model(chat["model"])
    return JSONResponse({"input_tokens": await frontend.count_tokens(chat)})


router = APIRouter()
router.add_route(PREFIX, create_message, methods=["POST"])
router.add_route(f"{PREFIX}/count_tokens", count_tokens, methods=["POST"])


def _messages_in(body: Any) -> Any:
    return body.get("messages") if isinstance(body, dict) else None

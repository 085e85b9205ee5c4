"""/v1/responses: OpenAI's responses, which remember what they follow."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from api.responses.request import KNOWN, request_of
from api.responses.turns import Turn, Turns
from api.routes.calls import call_of, headers_of
from api.routes.conversations import tenant_in_state
from api.routes.copies import answer_or_copy, first_page
from api.state.chat_state import ChatState
from api.state.responses import Responses
from api.wire.event_stream import EventStream
from api.wire.pages import listed, page_of
from api.wire.requests import object_of

router = APIRouter(prefix="/v1/responses")


@router.post("")
async def create(request: Request) -> Response:
    body = await object_of(request, KNOWN)
    wanted = request_of(body)
    call = call_of(request, body)
    turns: Turns = request.app.state.turns
    turn = await turns.start(tenant_in_state(request), wanted, call)
    if wanted.is_streamed:
        keep_alive_s = request.app.state.keep_alive_s
        return EventStream(_frames(turn), lambda _: None, lambda: headers_of(call), keep_alive_s)
    return JSONResponse(await _whole(turn), headers=headers_of(call))


@router.get("/{response}")
async def retrieve(request: Request, response: str) -> Response:
    tenant = tenant_in_state(request)
    return await answer_or_copy(request, tenant, response, "response", lambda: _store(request).get(tenant, response))


@router.delete("/{response}")
async def delete(request: Request, response: str) -> dict[str, Any]:
    tenant = tenant_in_state(request)
    async with request.app.state.chat_state.cache.forgetting(tenant, response):
        await _store(request).delete(tenant, response)
    return {"id": response, "object": "response", "deleted": True}


@router.get("/{response}/input_items")
async def input_items(request: Request, response: str) -> Response:
    tenant, page = tenant_in_state(request), page_of(request.query_params)

    async def ask() -> dict[str, Any]:
        return listed(await _store(request).input_items(tenant, response, page), page)

    return await answer_or_copy(request, tenant, response, first_page(page), ask)


async def _frames(turn: Turn) -> AsyncGenerator[bytes, None]:
    try:
        async with aclosing(turn.events()) as events:
            async for event in events:
                yield b"event: " + event["type"].encode() + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"
    finally:
        turn.leave()


async def _whole(turn: Turn) -> dict[str, Any]:
    try:
        return await turn.response()
    finally:
        turn.leave()


def _store(request: Request) -> Responses:
    """Raises StateUnavailable."""
    state: ChatState = request.app.state.chat_state
    return state.responses

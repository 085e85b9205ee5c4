"""/v1/responses: OpenAI's responses. A response can follow a conversation or an earlier response."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from api.edge.capacity import UNITS
from api.identity.rights import Right
from api.identity.route_rights import needs
from api.identity.tenants import principal_of, tenant_in_state
from api.responses.idempotency import attempt_of, found_for
from api.responses.resume import cancelled, resumed
from api.responses.turn import Turn
from api.routes.call_headers import call_of, check_constraints_of, headers_of, require_what_it_takes, tell_left_out
from api.routes.services import services_of
from api.routes.stale_reads import answer_or_copy, first_page
from api.server.event_stream import EventStream
from api.server.json_body import checked, object_of
from api.state.lifecycle import ChatState
from api.state.postgres.stores.items import new_id
from api.state.postgres.stores.responses import Responses
from api.state.redis.idempotency_keys import Hold
from api.wire.fingerprint import fingerprint
from api.wire.pages import listed, page_of
from api.wire.query import flag_in, number_in
from api.wire.responses.request import KNOWN, OVERRIDES, ResponseRequest, request_again, request_of
from api.wire.sse import error_event, event_frame
from cluster.errors import Conflict, NotFound, ServingError

router = APIRouter(prefix="/v1/responses")


@router.post("")
@needs(Right.INFERENCE)
async def create(request: Request) -> Response:
    """Generate a response. It is stored unless `store` is false."""
    body = await object_of(request, KNOWN)
    await check_constraints_of(request, body)
    truncation = services_of(request).context.config.default_truncation
    wanted = await checked(request, body.get("input"), lambda: request_of(body, truncation))
    return await _answer_once(request, wanted, body)


@router.get("/{response}")
@needs(Right.STATE_READ)
async def retrieve(request: Request, response: str) -> Any:
    """Answer with a stored response, or with its events if `stream=true`: those after the event `starting_after`."""
    tenant, query = tenant_in_state(request), request.query_params
    after = number_in(query, "starting_after")
    if not flag_in(query, "stream"):
        return await answer_or_copy(
            request, tenant, response, "response", lambda: _store(request).get(tenant, response)
        )
    return _resumed(request, response, 0 if after is None else after + 1)


@router.post("/{response}/cancel")
@needs(Right.STATE_READ, Right.STATE_WRITE)
async def cancel(request: Request, response: str) -> dict[str, Any]:
    """End a response that runs in the background."""
    tenant, store = tenant_in_state(request), _store(request)
    if await store.cancel(tenant, response):
        await cancelled(services_of(request).turns, services_of(request).chat_state, tenant, response)
    return await store.get(tenant, response)


@router.post("/{response}/regenerate")
@needs(Right.INFERENCE, Right.STATE_READ, Right.STATE_WRITE)
async def regenerate(request: Request, response: str) -> Response:
    """Answer the input of a response again, as a new response. In a conversation, the new response replaces the turn
    and the turns that follow it.
    """
    overrides = await object_of(request, OVERRIDES)
    await check_constraints_of(request, overrides)
    tenant, store = tenant_in_state(request), _store(request)
    asked, truncation = await store.asked(tenant, response), services_of(request).context.config.default_truncation
    wanted = await checked(request, asked.items, lambda: request_again(asked, overrides, truncation))
    return await _answer_once(request, wanted, overrides)


@router.delete("/{response}")
@needs(Right.STATE_WRITE)
async def delete(request: Request, response: str) -> dict[str, Any]:
    """Delete a stored response."""
    tenant = tenant_in_state(request)
    async with services_of(request).chat_state.cache.forgetting(tenant, response):
        await _store(request).delete(tenant, response)
    return {"id": response, "object": "response", "deleted": True}


@router.get("/{response}/input_items")
@needs(Right.STATE_READ)
async def input_items(request: Request, response: str) -> Response:
    """List the items that a response answers, the newest first."""
    tenant, page = tenant_in_state(request), page_of(request.query_params)

    async def ask() -> dict[str, Any]:
        return listed(await _store(request).input_items(tenant, response, page))

    return await answer_or_copy(request, tenant, response, first_page(page), ask)


async def _answer_once(request: Request, wanted: ResponseRequest, body: dict[str, Any]) -> Response:
    """Answer a request once, even if its client sends it several times (api/responses/idempotency.py)."""
    require_what_it_takes(request, wanted)
    tell_left_out(request, wanted)
    if not wanted.is_stored:
        return await _answer(request, wanted, new_id("resp"))
    principal_of(request).require(Right.STATE_WRITE, ', or send "store": false')
    tenant = tenant_in_state(request)
    mark = await checked(request, wanted.items, lambda: fingerprint(tenant, request.url.path, body))
    attempt = attempt_of(request.headers, principal_of(request).sender, mark)
    found = await found_for(services_of(request).chat_state, tenant, attempt, new_id("resp"))
    if found.hold is None:
        return await _answer_of_another_try(request, wanted, found.response)
    return await _answer(request, wanted, found.response, found.hold)


async def _answer(request: Request, wanted: ResponseRequest, response: str, hold: Hold | None = None) -> Response:
    """Start the turn that makes the response with the id `response`, and answer with the response or its events. `hold`
    keeps the name under which further tries of the request find the response; None if there is no such name.
    """
    try:
        call = call_of(request, wanted.body)
        tenant, units = tenant_in_state(request), request.scope[UNITS]
        settle = None if hold is None else hold.settle
        turn = await services_of(request).turns.start(tenant, wanted, call, response, units, settle)
    except ServingError:
        if hold is not None:
            hold.refuse()
        raise
    if wanted.is_streamed:
        keep_alive_s = services_of(request).config.keep_alive_s
        return EventStream(
            _turn_frames(turn),
            lambda _: None,
            lambda: headers_of(call),
            keep_alive_s,
            lambda error: error_event(error, 0),
        )
    return JSONResponse(await _whole(turn), headers=headers_of(call))


async def _answer_of_another_try(request: Request, wanted: ResponseRequest, response: str) -> Response:
    if wanted.is_streamed:
        frames = _frames(_started(_events_of(request, response, -1)), 0)
        keep_alive_s = services_of(request).config.keep_alive_s
        return EventStream(frames, lambda _: None, dict, keep_alive_s, lambda error: error_event(error, 0))
    try:
        if not wanted.is_background:
            async with aclosing(_events_of(request, response, -1)) as events:
                async for _ in events:
                    pass
        return JSONResponse(await _store(request).get(tenant_in_state(request), response))
    except NotFound as error:
        raise _refused_meanwhile() from error


def _resumed(request: Request, response: str, first: int) -> EventStream:
    """The events of a response from the event `first` on."""
    frames = _frames(_events_of(request, response, first - 1), first)
    keep_alive_s = services_of(request).config.keep_alive_s
    return EventStream(frames, lambda _: None, dict, keep_alive_s, lambda error: error_event(error, first))


def _events_of(request: Request, response: str, after: int) -> AsyncGenerator[bytes, None]:
    services = services_of(request)
    return resumed(services.turns, services.chat_state, tenant_in_state(request), response, after)


async def _started(events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The events of another try of the request. Raises Conflict if that try was refused."""
    try:
        async with aclosing(events):
            async for event in events:
                yield event
    except NotFound as error:
        raise _refused_meanwhile() from error


def _refused_meanwhile() -> Conflict:
    return Conflict(
        "another try of this request was refused in the meantime: send the request again", None, "request_refused"
    )


async def _turn_frames(turn: Turn) -> AsyncGenerator[bytes, None]:
    try:
        async with aclosing(_frames(turn.events(), 0)) as frames:
            async for frame in frames:
                yield frame
    finally:
        turn.leave()


async def _frames(events: AsyncGenerator[bytes, None], first: int) -> AsyncGenerator[bytes, None]:
    """The events as frames. `first` is the number of the first event. An error is raised as ServingError before the
    first event, and is a frame after it.
    """
    number = first
    try:
        async with aclosing(events):
            async for event in events:
                yield event_frame(event)
                number += 1
    except ServingError as error:
        if number == first:
            raise
        yield error_event(error, number)


async def _whole(turn: Turn) -> dict[str, Any]:
    try:
        return await turn.response()
    finally:
        turn.leave()


def _store(request: Request) -> Responses:
    """The store of responses. Raises StateUnavailable."""
    state: ChatState = services_of(request).chat_state
    return state.stores.responses

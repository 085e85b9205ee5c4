"""GET /v1/responses as a WebSocket: OpenAI's responses, several of them on one connection (docs/websockets.md)."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from fastapi import APIRouter, WebSocket
from fastapi.requests import HTTPConnection

from api.edge.capacity import UNITS
from api.edge.exchange import EXCHANGE
from api.edge.request_body import BODY, Body
from api.edge.socket import NOT_ALLOWED, SOCKET, Socket
from api.identity.rights import Right
from api.identity.route_rights import needs
from api.identity.tenants import principal_of, tenant_in_state
from api.responses.chain_memory import ChainMemory, packed
from api.responses.running_turns import input_of
from api.responses.socket_loop import SocketLoop
from api.routes.call_headers import call_of, check_constraints_of, require_what_it_takes
from api.routes.counted_requests import counting
from api.routes.services import services_of
from api.server.json_body import checked, json_of, object_with
from api.state.postgres.stores.items import new_id
from api.wire.responses.events import Event, ResponseWriter
from api.wire.responses.request import ResponseRequest, request_of, response_of
from api.wire.responses.socket_messages import (
    KNOWN_IN_MESSAGE,
    ResponseChain,
    create_message_of,
    error_message,
    following,
    marked,
    stream_id_of,
)
from cluster.errors import ServingError, Unauthorized
from cluster.metrics.requests import WEBSOCKET_MESSAGES

PATH = "/v1/responses"
router = APIRouter()

_NOTHING_GENERATED = {
    "choices": [{"finish_reason": "stop"}],
    "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
}
"""The answer of a model that was not asked, as a chunk of a chat completion."""


@router.websocket(PATH)
@needs(Right.INFERENCE)
async def connect(request: WebSocket) -> None:
    socket: Socket = request.scope[SOCKET]
    memory = ChainMemory(services_of(request).chain_space, principal_of(request).tenant)
    await request.accept()
    await socket.tell_idle()
    try:
        await SocketLoop(socket, _Answers(socket, memory).answer).run()
    finally:
        memory.clear()


class _Answers:
    """The answers to the messages of one connection."""

    def __init__(self, socket: Socket, memory: ChainMemory) -> None:
        self._socket = socket
        self._memory = memory

    async def answer(self, body: Body) -> AsyncGenerator[bytes, None]:
        stream_id, previous, headers = None, None, {}
        number, outcome = 0, "left"
        try:
            async with self._socket.admitted(body) as request:
                headers = request.scope[EXCHANGE].told
                message = await json_of(request)
                stream_id = stream_id_of(message)
                known = object_with(message, KNOWN_IN_MESSAGE)
                previous = known.get("previous_response_id")
                async with aclosing(self._events(request, known)) as events:
                    async for event in events:
                        yield marked(event, stream_id)
                        number += 1
            outcome = "answered"
        except ServingError as error:
            outcome = "failed" if number else "refused"
            self._forget(previous)
            yield error_message(error, stream_id, number or None, headers)
            if isinstance(error, Unauthorized):
                await self._socket.close(NOT_ALLOWED, "the credential is not valid any more")
        finally:
            WEBSOCKET_MESSAGES.labels(outcome).inc()

    async def _events(self, request: HTTPConnection, message: dict[str, Any]) -> AsyncGenerator[bytes, None]:
        """The events of the response that a message asks for. Raises ServingError."""
        principal_of(request).require(Right.INFERENCE)
        body, generates = create_message_of(message)
        await check_constraints_of(request, body)
        truncation = services_of(request).context.config.default_truncation
        wanted = await checked(request, body.get("input"), lambda: request_of(body, truncation))
        previous = wanted.previous
        request.scope[BODY].add(self._memory.num_bytes_of(previous))
        chain = self._memory.chain_of(previous)
        if chain is not None:
            request.scope[BODY].add_values(chain.num_values)
            request.state.is_large |= chain.is_large
            wanted = following(wanted, await checked(request, None, chain.unpacked))
        require_what_it_takes(request, wanted)
        if wanted.is_stored:
            principal_of(request).require(Right.STATE_WRITE, ', or send "store": false')
        else:
            state = services_of(request).chat_state
            wanted = wanted._replace(items=await input_of(state, tenant_in_state(request), wanted))
        last = b""
        async with aclosing(self._generated(request, wanted) if generates else _prepared(request, wanted)) as events:
            async for last in events:
                yield last
        response = msgspec.json.decode(last)["response"]
        if response["status"] == "failed":
            self._forget(previous)
        else:
            await self._keep(request, wanted, response)

    async def _generated(self, request: HTTPConnection, wanted: ResponseRequest) -> AsyncGenerator[bytes, None]:
        call, tenant = call_of(request, wanted.body), tenant_in_state(request)
        turn = await services_of(request).turns.start(tenant, wanted, call, new_id("resp"), request.scope[UNITS])
        try:
            async with aclosing(turn.events()) as events:
                async for event in events:
                    yield event
        finally:
            turn.leave()

    async def _keep(self, request: HTTPConnection, wanted: ResponseRequest, response: dict[str, Any]) -> None:
        """Remember a response that is over, if it is not stored."""
        if wanted.is_stored or wanted.conversation:
            self._memory.clear()
        else:
            items = [*wanted.followed, *wanted.items, *response["output"]]
            chain = ResponseChain(response["id"], wanted.previous, items)
            self._memory.remember(await checked(request, items, lambda: packed(chain)))

    def _forget(self, previous: Any) -> None:
        self._memory.forget(previous if isinstance(previous, str) else None)


async def _prepared(request: HTTPConnection, wanted: ResponseRequest) -> AsyncGenerator[bytes, None]:
    """The events of a response without output, which the next one may follow."""
    call, tenant = call_of(request, wanted.body), tenant_in_state(request)
    async with counting(request):
        if wanted.previous is not None:  # it must exist
            await services_of(request).chat_state.stores.responses.history(tenant, None, wanted.previous)
    now = int(time.time())
    writer = ResponseWriter(response_of(wanted, new_id("resp"), now, call.terms.slo_class), new_id)
    events: list[Event] = [*writer.begin(), *writer.take(_NOTHING_GENERATED), *writer.end(now)]
    for event in events:
        yield msgspec.json.encode(event)

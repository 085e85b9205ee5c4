"""A WebSocket as its route sees it. Each message passes the steps that the edge (api/edge/edge.py) has for a request:
it gets an id, its bytes are counted, its sender is identified anew, and it holds a unit of the replica's capacity.

A credential may be revoked, or may expire, while the connection is open. A connection without a running response holds
no capacity.

The listener (api/server/socket_protocol.py) knows two more kinds of ASGI messages, if the scope has EXTENSION: with END
it tells that the connection has to end, and with IDLE it is told that no message is being answered. It gives a text as
its bytes in UTF-8, marked by IS_TEXT.
"""

import secrets
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from typing import Any, NamedTuple

from starlette.requests import HTTPConnection
from starlette.types import Receive, Scope, Send

from api.edge.capacity import UNITS, Capacity, Units, full
from api.edge.exchange import EXCHANGE
from api.edge.head import Head
from api.edge.request_body import BODY, Bodies, Body, ClientLeft
from api.edge.request_id import HTTP_REQUEST, MAX_CHARS, SCOPE_KEY, TRACE
from api.identity.access import AccessPort
from api.identity.tenants import PRINCIPAL
from cluster.errors import Overloaded, ServingError, Unauthorized
from cluster.observability.trace_context import TraceContext, context_of

SOCKET = "baton.socket"
"""Key in the ASGI scope of a WebSocket. The value is its `Socket`."""
EXTENSION = "baton.socket"
"""Key in the `extensions` of the ASGI scope of a WebSocket whose server knows END and IDLE."""
END, IDLE, IS_TEXT = "baton.socket.end", "baton.socket.idle", "baton.socket.is_text"

NORMAL, NOT_TEXT, NOT_UTF8, NOT_ALLOWED, FAILED, RESTART, TRY_LATER = 1000, 1003, 1007, 1008, 1011, 1012, 1013
"""Codes with which a WebSocket is closed (RFC 6455, section 7.4, and IANA's registry)."""


class SocketEnding(StrEnum):
    """Why the listener ends a WebSocket."""

    LEAVING = "the replica ends: connect again"
    LIFETIME = "the connection is too old: connect again"
    UNUSED = "the connection was idle for too long"
    SURPLUS = "too many connections are open, and this one was idle"

    @property
    def code(self) -> int:
        return {SocketEnding.LEAVING: RESTART, SocketEnding.SURPLUS: TRY_LATER}.get(self, NORMAL)


Arrived = Body | ServingError | SocketEnding | None
"""What comes next on a WebSocket: a message, the reason why one cannot be read, an ending, or None if nothing comes any
more.
"""


class Steps(NamedTuple):
    """What the steps of a message need."""

    bodies: Bodies
    capacity: Capacity
    access: AccessPort
    is_traced: bool


class MessageHeaders:
    """The headers that the answer to a message would have over HTTP, in the place of the message's `Exchange`."""

    def __init__(self) -> None:
        self.told: dict[str, str] = {}

    def add_headers(self, headers: dict[str, str]) -> None:
        self.told |= headers


class Socket:
    def __init__(self, scope: Scope, receive: Receive, send: Send, steps: Steps) -> None:
        """`scope`: of a WebSocket that the edge has admitted. `receive`, `send`: the server's."""
        self._scope = scope
        self._receive = receive
        self._send = send
        self._steps = steps
        self._share = steps.bodies.share()
        self._is_extended = EXTENSION in scope.get("extensions", {})
        self._num_messages = 0

    async def next(self) -> Arrived:
        """What comes next. A message counts as held in memory until its `Body` is released."""
        message = await self._receive()
        if message["type"] == END:
            return SocketEnding(message["ending"])
        if message["type"] != "websocket.receive":
            return None
        read = _text_in(message)
        if read is None:
            await self.close(NOT_TEXT, "messages must be text")
            return None
        body = Body(self._share)
        try:
            body.add(len(read))
        except Overloaded as error:
            return error
        body.put(read)
        return body

    @asynccontextmanager
    async def admitted(self, body: Body) -> AsyncIterator[HTTPConnection]:
        """The message as a request, which has a state and a scope of its own, and the headers of the connection. The
        body is released at the end. Raises Unauthorized, Overloaded, and the errors of AccessPort.
        """
        steps, scope = self._steps, self._scope
        self._num_messages += 1
        name = f"{scope[SCOPE_KEY][: MAX_CHARS - 9]}:{self._num_messages}"
        token = HTTP_REQUEST.set(name)
        units: Units | None = None
        try:
            if steps.is_traced:
                TRACE.set(self._trace(name))
            state = {**await steps.access.admit(scope["path"], scope["headers"])}
            if state[PRINCIPAL].tenant != scope["state"][PRINCIPAL].tenant:  # type: ignore[attr-defined]
                raise Unauthorized("the credential belongs to another tenant now", None, "invalid_api_key")
            units = steps.capacity.acquire()
            if units is None:
                raise full(steps.capacity)
            own: dict[str, Any] = {
                "state": state,
                BODY: body,
                UNITS: units,
                EXCHANGE: MessageHeaders(),
                SCOPE_KEY: name,
            }
            yield HTTPConnection({**scope, **own})
        finally:
            body.release()
            if units is not None:
                units.release()
            TRACE.set(None)
            HTTP_REQUEST.reset(token)

    async def send(self, message: bytes) -> None:
        """Sends a message, as soon as the client has read enough of the earlier ones. Raises ClientLeft."""
        try:
            await self._send({"type": "websocket.send", "text": message.decode()})
        except OSError as error:
            raise ClientLeft from error

    async def tell_idle(self) -> None:
        """No message is being answered or waits."""
        if self._is_extended:
            await self._send({"type": IDLE})

    async def close(self, code: int, reason: str) -> None:
        with suppress(OSError):  # the client has left
            await self._send({"type": "websocket.close", "code": code, "reason": reason})

    def _trace(self, name: str) -> TraceContext:
        head: Head = self._scope["baton.head"]
        return context_of(head.trace_parent, head.trace_state, name, secrets.token_hex(8))


def _text_in(message: MutableMapping[str, Any]) -> bytes | None:
    """The text of a message. None for one of another kind."""
    if message.get(IS_TEXT):
        return bytes(message["bytes"])
    text = message.get("text")
    return None if text is None else str(text).encode()

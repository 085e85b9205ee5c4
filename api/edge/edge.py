"""The steps before every HTTP request reaches its route: it gets an id, is checked, is read and is counted, in this
order.

A request that its headers show to be wrong is refused before its body is read, and so is one without the credential
that it needs. A body is read before the request counts as open, so that slow senders do not use up the open requests.
Every answer has the id of the request, and every error has the shape of its surface (api/edge/error_response.py).
"""

import asyncio
import logging
import secrets
import socket

from starlette.datastructures import QueryParams
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.edge.browser import SECURITY_HEADERS, OriginRule, check_content_type, check_upgrade
from api.edge.byte_budget import FREE_BYTES, ByteBudget
from api.edge.capacity import UNITS, Capacity, Units, full
from api.edge.error_response import error_response
from api.edge.exchange import EXCHANGE, Exchange, Headers
from api.edge.head import Head, check_repeated, head_of
from api.edge.hosts import HostRule
from api.edge.request_body import BODY, Bodies, ClientLeft
from api.edge.request_id import HEADER, HTTP_REQUEST, SCOPE_KEY, TRACE, request_id_of
from api.edge.socket import FAILED, SOCKET, Socket, Steps
from api.identity.access import AccessPort
from api.wire.messages.surface import is_of_messages
from api.wire.query import flag_in
from api.wire.response_headers import ANTHROPIC_REQUEST_ID, EXPOSED, TRACE_PARENT
from cluster.config.ingress import IngressConfig
from cluster.errors import UNFORESEEN, InvalidRequest, Misdirected, ServingError
from cluster.metrics.requests import HTTP_REFUSALS
from cluster.observability.trace_context import context_of

logger = logging.getLogger("baton.ingress")

STREAMED_AGAIN = "/v1/responses/"
"""Prefix of the paths on which a GET may stream."""
_PREFLIGHT_S = 600
"""Time for which browsers may cache the answer to a preflight request, in seconds. Shorter costs more preflight
requests; longer delays a change of `cors_origins`.
"""


class Edge:
    """The outermost ASGI middleware of the public port, and of the admin port."""

    def __init__(
        self,
        app: ASGIApp,
        config: IngressConfig,
        capacity: Capacity,
        access: AccessPort,
        *,
        is_traced: bool = False,
        budget: ByteBudget | None = None,
    ) -> None:
        """`capacity` limits what is open at the same time. `access` says who is admitted. `is_traced`: traces are
        exported, so each request belongs to one, and its answer says to which. `budget`: the memory for bodies, which
        the listener of WebSockets takes from, too.
        """
        self._is_traced = is_traced
        self._app = app
        self._hosts = HostRule(config.allowed_hosts, config.host, socket.gethostname())
        self._origins = OriginRule(config.cors_origins)
        self._bodies = Bodies(config, budget)
        self._capacity = capacity
        self._access = access
        self._with_cors = CORSMiddleware(
            self._admitted,
            allow_origins=[origin.lower() for origin in config.cors_origins],
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=EXPOSED,
            max_age=_PREFLIGHT_S,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            raise RuntimeError(f"{scope['type']} is not served")
        head = head_of(scope["headers"])
        request_id = request_id_of(head.request_id)
        token = HTTP_REQUEST.set(request_id)
        named = [(HEADER, request_id.encode())]
        if is_of_messages(scope["path"]):
            named.append((ANTHROPIC_REQUEST_ID.encode(), request_id.encode()))
        if self._is_traced:
            is_made = head.request_id != request_id.encode()
            nonce = secrets.token_hex(8)
            trace = context_of(head.trace_parent, head.trace_state, request_id, nonce, is_made=is_made)
            TRACE.set(trace)
            named.append((TRACE_PARENT.encode(), trace.header.encode()))
        scope["baton.head"], scope[SCOPE_KEY] = head, request_id
        if scope["type"] == "websocket":
            try:
                await self._connect(scope, receive, send, [*named, *SECURITY_HEADERS])
            finally:
                HTTP_REQUEST.reset(token)
                TRACE.set(None)
            return
        exchange = Exchange(receive, send, [*named, *SECURITY_HEADERS])
        scope[EXCHANGE] = exchange
        try:
            self._check_sender(scope, head)
            check_upgrade(head.upgrade)
            is_foreign = head.origin is not None and self._origins.is_listed(head.origin)
            await (self._with_cors if is_foreign else self._admitted)(scope, receive, exchange.send)
        except ServingError as error:
            HTTP_REFUSALS.labels(error.code or "").inc()
            await error_response(error, scope)(scope, receive, exchange.send)
        finally:
            exchange.close()
            HTTP_REQUEST.reset(token)
            TRACE.set(None)

    def _check_sender(self, scope: Scope, head: Head) -> None:
        """Checks the headers that name the host and the origin. Raises InvalidRequest, Misdirected, Forbidden."""
        check_repeated(scope["headers"])
        if head.host is None:
            if scope.get("http_version") != "1.0":
                raise InvalidRequest("the header Host is missing", None, "missing_host")
        elif not self._hosts.allows(head.host):
            name = head.host.decode("latin-1")
            raise Misdirected(
                f"this service has no host name {name!r}: the operator can list it in ingress.allowed_hosts",
                None,
                "host_not_allowed",
            )
        if head.origin is not None:
            self._origins.check(head.origin, head.host or b"")

    async def _connect(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        """Admits and serves a WebSocket. One that is refused is not opened: its client gets an HTTP answer. `headers`:
        of the answer to the upgrade.
        """
        is_accepted = False

        async def sending(message: Message) -> None:
            nonlocal is_accepted
            is_accepted = is_accepted or message["type"] == "websocket.accept"
            if message["type"] in ("websocket.accept", "websocket.http.response.start"):
                message = {**message, "headers": [*message.get("headers", ()), *headers]}
            await send(message)

        try:
            self._check_sender(scope, scope["baton.head"])
            scope.setdefault("state", {}).update(await self._access.admit(scope["path"], scope["headers"]))
            steps = Steps(self._bodies, self._capacity, self._access, self._is_traced)
            socket_ = scope[SOCKET] = Socket(scope, receive, send, steps)
            await self._app(scope, receive, sending)
        except ServingError as error:
            HTTP_REFUSALS.labels(error.code or "").inc()
            await error_response(error, scope)(scope, receive, sending)
        except OSError:
            pass  # the client has left
        except Exception:
            logger.exception("the WebSocket %s failed", scope["path"])
            if is_accepted:
                await socket_.close(FAILED, "internal error")
            else:
                await error_response(ServingError(UNFORESEEN), scope)(scope, receive, sending)

    async def _admitted(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reads, counts and serves a request. `receive` is the server's. Errors are answered here, inside of the CORS
        middleware, so that pages of listed origins can read them.
        """
        exchange: Exchange = scope[EXCHANGE]
        body = scope[BODY] = self._bodies.new()
        units: Units | None = None
        try:
            head: Head = scope["baton.head"]
            scope.setdefault("state", {}).update(await self._access.admit(scope["path"], scope["headers"]))
            if head.has_body:
                check_content_type(head.content_type)
                most = None if self._access.takes_bodies(scope["path"]) else FREE_BYTES
                await self._bodies.read_into(body, head, receive, most)
            exchange.watch()
            if _is_counted(scope):
                units = scope[UNITS] = self._unit()
            await self._app(scope, exchange.receive, send)
        except ClientLeft:
            pass
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not exchange.client_left or task is None:
                raise
            task.uncancel()
        except ServingError as error:
            HTTP_REFUSALS.labels(error.code or "").inc()
            await error_response(error, scope)(scope, receive, send)
        except Exception:
            logger.exception("%s %s failed", scope["method"], scope["path"])
            if exchange.is_started:
                raise
            await error_response(ServingError(UNFORESEEN), scope)(scope, receive, send)
        finally:
            body.release()
            if units is not None:
                units.release()

    def _unit(self) -> Units:
        """One unit of the capacity. Raises Overloaded if none is free."""
        units = self._capacity.acquire()
        if units is None:
            raise full(self._capacity)
        return units


def hold_more(scope: Scope, number: int) -> None:
    """Takes `number` more units of the replica's capacity, for a request with several sequences. Raises Overloaded."""
    units: Units = scope[UNITS]
    if not units.grow(number):
        raise full(units.capacity)


def _is_counted(scope: Scope) -> bool:
    """Whether a request counts as open. A POST counts, and so does a stream that is read again. Short requests do not:
    a full replica still answers health checks.
    """
    if scope["method"] == "POST":
        return True
    if not scope["path"].startswith(STREAMED_AGAIN):
        return False
    try:
        return flag_in(QueryParams(scope.get("query_string", b"")), "stream")
    except InvalidRequest:  # the route that reads this parameter refuses it
        return False

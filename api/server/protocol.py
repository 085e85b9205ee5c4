"""uvicorn's HTTP protocol with limits that uvicorn lacks: on time, headers, pipelining and connections.

A connection is idle until the headers of a request are complete, and again when the answer is complete. A request that
exceeds a limit gets an error in the shape of its surface, unless another request is being answered, and the connection
is closed.
"""

import asyncio
import logging
from collections.abc import Collection
from typing import Any, Protocol, cast

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from api.edge.browser import SECURITY_HEADERS
from api.edge.byte_budget import ByteBudget
from api.edge.connections import Connections
from api.edge.error_response import error_response
from api.edge.request_id import HEADER, SCOPE_KEY, request_id_of
from api.server.head_limits import HeadLimits
from api.wire.errors import FULL_REPLICA_RETRY_S
from api.wire.messages.surface import is_of_messages
from api.wire.response_headers import ANTHROPIC_REQUEST_ID
from cluster.config.ingress import IngressConfig
from cluster.errors import InvalidRequest, Overloaded, RequestTimedOut, ServingError
from cluster.metrics.requests import HTTP_REFUSALS

LINGER_S = 2.0
"""How long a connection that is to be closed is still read, in seconds, so that its client can read the answer before
the reset. Shorter loses the answers of slow clients; longer keeps more connections.
"""
LATE_BODY_S = 5.0
"""How long the rest of a body may take after its request is answered, in seconds. Shorter closes more connections that
could be used again; longer keeps slow clients connected.
"""
MAX_LINGERING = 64
"""Connections that may linger at a time; further ones are reset at once. More takes memory; fewer loses more answers.
"""

LEAVING_S = 1.0
"""Time that a connection without a request has for one when the replica ends, in seconds. Its answer tells the client
to use another connection. Shorter closes connections on which a request is under way; longer delays the end.
"""

quiet = logging.getLogger("baton.http")
quiet.setLevel(logging.ERROR)  # a log line per bad request would let clients fill the disk: a metric counts them


class Guarded(Protocol):
    """A connection of a listener."""

    transport: asyncio.Transport

    def end_if_late(self, now: float) -> None: ...

    def end(self) -> None: ...

    def shutdown(self) -> None: ...


class Gatekeeper:
    """All connections of a listener."""

    def __init__(
        self, config: IngressConfig, socket_paths: Collection[str] = (), budget: ByteBudget | None = None
    ) -> None:
        """`socket_paths`: URL paths at which WebSockets are opened. `budget`: the memory for the messages that arrive
        on them, which the bodies of requests take from, too.
        """
        self.config = config
        self.socket_paths = frozenset(path.encode() for path in socket_paths)
        self.budget = budget or ByteBudget(config.max_bodies_bytes)
        self.connections: Connections[Guarded] = Connections(config.max_connections, config.max_connections_per_address)
        self.ending: set[Guarded] = set()
        """Connections that linger: they are closed when their clients have read the answer."""
        self.is_leaving = False

    def sweep(self, now: float) -> None:
        """End the connections whose deadline is over. One sweep replaces a timer for each connection and request."""
        for protocol in [*self.connections.open, *self.ending]:
            protocol.end_if_late(now)

    def leave(self) -> None:
        """The replica ends: no connection, open or new, has more than one request from now on."""
        self.is_leaving = True
        for protocol in list(self.connections.open):
            protocol.shutdown()

    def abort(self) -> None:
        """Cut off the requests that still run, as if their clients had left."""
        for protocol in [*self.connections.open, *self.ending]:
            protocol.transport.abort()


class Deadlines:
    """When one connection must have moved on, by the event loop's clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.request: float | None = None
        """For the next step of a request. None while a request is being answered."""
        self.unread: float | None = None
        """For a client that does not read its answer. None while the client reads."""

    def expect_request_within(self, seconds: float) -> None:
        self.request = self._loop.time() + seconds

    def expect_read_within(self, seconds: float) -> None:
        self.unread = self._loop.time() + seconds


class UpgradingProtocol(HttpToolsProtocol):
    """uvicorn's protocol, where the paths that have WebSockets are known."""

    _gatekeeper: Gatekeeper

    def handle_websocket_upgrade(self) -> None:
        """The connection goes on as a GuardedSocket, which takes the place of this one."""
        self._gatekeeper.connections.remove(cast(Guarded, self))
        super().handle_websocket_upgrade()

    def _should_upgrade_to_ws(self) -> bool:
        """Whether the path has WebSockets. Others are refused as requests (check_upgrade in api/edge/browser.py)."""
        is_free = self.cycle is None or self.cycle.response_complete
        is_get = self.parser.get_method() == b"GET" and self.parser.get_http_version() == "1.1"
        return is_free and is_get and self.url.partition(b"?")[0] in self._gatekeeper.socket_paths

    def _opens_socket(self) -> bool:
        return bool(self.parser.should_upgrade()) and self._should_upgrade()


class GuardedProtocol(UpgradingProtocol):
    """The callbacks of asyncio's transport and of the parser, each with uvicorn's part and the limits."""

    def __init__(self, gatekeeper: Gatekeeper, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self.logger = quiet
        self._gatekeeper = gatekeeper
        self._config = gatekeeper.config
        self._deadlines = Deadlines(self.loop)
        self._head = HeadLimits(gatekeeper.config.max_header_bytes)
        self._answering: RequestResponseCycle | None = None
        """The request that the application answers. Pipelined requests wait behind it."""
        self._is_ending = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connections = self._gatekeeper.connections
        address = self.client[0] if self.client else ""
        self._becomes_idle()
        if not connections.add(self, address):
            why = f"{connections.most_per_address} connections of {address} are open"
            self._refuse(Overloaded(why, FULL_REPLICA_RETRY_S))
        elif (surplus := connections.surplus()) is self:
            self._refuse(Overloaded(f"{connections.most} connections are open", FULL_REPLICA_RETRY_S))
        elif surplus is not None:
            surplus.end()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)  # which tells the request that was sent last
        if self._answering is not None:
            _disconnect(self._answering)
        self._gatekeeper.connections.remove(self)
        self._gatekeeper.ending.discard(self)

    def data_received(self, data: bytes) -> None:
        if self._is_ending:
            return
        super().data_received(data)
        if self._head.count_unparsed(len(data)) and not self._is_ending:
            self._refuse(self._head.too_large())

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._head.refusal or InvalidRequest("the request is not valid HTTP/1.1", None, "invalid_http"))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head.begin()
        self._deadlines.expect_request_within(self._config.header_timeout_s)

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._head.check_url(self.url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head.check_header(name, value)
        if self._head.is_open:  # else it is a trailer, which must not pass for a header that has been checked
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head.complete()
        self._deadlines.request = None
        self._gatekeeper.connections.is_busy(self)
        if self._opens_socket():
            self._head.check_no_body(self.headers)
            super().on_headers_complete()
            return
        self._head.check_pipelined(len(self.pipeline))
        if not self.url.startswith(b"/"):
            self.headers[:] = _with_host_of(self.url, self.headers)
        super().on_headers_complete()
        # After an upgrade, the parser reads nothing that follows
        if self.parser.should_upgrade() or self._gatekeeper.is_leaving:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._head.has_moved = True

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._head.end_of_message()
        if self._opens_socket():
            return
        if self.cycle.response_complete:
            self._becomes_idle()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing() or not self.cycle.response_complete:
            return
        if not self.cycle.more_body:
            self._becomes_idle()
        elif self.expect_100_continue:  # the client may leave the body out: the next request would be read as the body
            self.end()
        else:
            self._deadlines.expect_request_within(LATE_BODY_S)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._deadlines.expect_read_within(self._config.unread_timeout_s)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._deadlines.unread = None

    def shutdown(self) -> None:
        """uvicorn ends. It would close a connection on which a request is under way."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
        elif not self._head.has_begun:
            self._deadlines.expect_request_within(LEAVING_S)

    def end_if_late(self, now: float) -> None:
        """End the connection if one of its deadlines is over."""
        deadlines = self._deadlines
        if deadlines.unread is not None and deadlines.unread <= now:
            HTTP_REFUSALS.labels("client_too_slow").inc()
            self.transport.abort()
        elif deadlines.request is None or deadlines.request > now:
            return
        elif self._is_ending:
            self.transport.abort()
        elif self._head.has_begun:
            self._refuse(RequestTimedOut("the headers of the request came too slowly", None, "header_timeout"))
        else:
            self.end()

    def end(self) -> None:
        """Stop writing, and read what the client still sends until it closes the connection too."""
        gatekeeper, answering = self._gatekeeper, self._answering
        is_answering = answering is not None and not (answering.response_complete or answering.disconnected)
        if is_answering or self._is_ending or self.transport.is_closing() or len(gatekeeper.ending) >= MAX_LINGERING:
            self.transport.abort()
            return
        self._is_ending = True
        gatekeeper.connections.remove(self)
        gatekeeper.ending.add(self)
        self.flow.resume_reading()
        self.transport.write_eof()
        self._deadlines.expect_request_within(LINGER_S)

    def _refuse(self, error: ServingError) -> None:
        HTTP_REFUSALS.labels(error.code or "").inc()
        answering = self._answering
        if answering is not None and answering is self.cycle and answering.more_body and not answering.response_started:
            _disconnect(answering)  # the application waits for the rest of this body, which never comes
        is_free = answering is None or answering.response_complete or answering.disconnected
        if is_free and not self.transport.is_closing():
            unanswered = answering if answering is self.cycle else None
            has_begun = self._head.has_begun
            request_id = _id_of(self.headers if has_begun else None, unanswered)
            path = _path_of(self.url if has_begun else None, unanswered)
            self.transport.write(whole_answer(error, self.server_state.default_headers, request_id, path))
        self.end()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def _becomes_idle(self) -> None:
        self._gatekeeper.connections.is_idle(self)
        self._deadlines.expect_request_within(LEAVING_S if self._gatekeeper.is_leaving else self._config.idle_timeout_s)


def _disconnect(cycle: RequestResponseCycle) -> None:
    """End the wait of the application for the client of a request."""
    if not cycle.response_complete:
        cycle.disconnected = True
    cycle.message_event.set()


def _id_of(headers: list[tuple[bytes, bytes]] | None, cycle: RequestResponseCycle | None) -> str:
    """The id of a request that is refused: the client's, as far as its headers have come, or that which the application
    knows it by, or a new one. `headers`: of a head that is not complete; `cycle`: of the request whose body is.
    """
    if headers is None and cycle is not None and not cycle.response_complete:
        scope = cast(dict[str, Any], cycle.scope)
        if SCOPE_KEY in scope:
            return str(scope[SCOPE_KEY])
        headers = scope["headers"]
    return request_id_of(next((value for name, value in headers or () if name == HEADER), None))


def _path_of(url: bytes | None, cycle: RequestResponseCycle | None) -> str:
    """The path of a request that is refused; empty if it is not known. `url`: of a head that is not complete; `cycle`:
    of the request whose body is.
    """
    if url is None:
        return "" if cycle is None else str(cast(dict[str, Any], cycle.scope)["path"])
    try:
        return (httptools.parse_url(url).path or b"").decode("latin-1")
    except httptools.HttpParserInvalidURLError:
        return ""


def _with_host_of(url: bytes, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers of a request whose URL names a host: that host replaces the Host header (RFC 9112)."""
    parsed = httptools.parse_url(url)
    if not parsed.host:
        return headers
    port = b"" if parsed.port is None else b":%d" % parsed.port
    return [header for header in headers if header[0] != b"host"] + [(b"host", parsed.host + port)]


def whole_answer(error: ServingError, usual: list[tuple[bytes, bytes]], request_id: str, path: str) -> bytes:
    """An error as an answer, after which the connection is closed. `usual`: headers of every answer. `path`: of the
    request; empty if it is not known.
    """
    response = error_response(error, {"path": path, SCOPE_KEY: request_id})
    of_surface = [(ANTHROPIC_REQUEST_ID.encode(), request_id.encode())] if is_of_messages(path) else []
    headers = [
        *usual,
        *response.raw_headers,
        *SECURITY_HEADERS,
        (HEADER, request_id.encode()),
        *of_surface,
        (b"connection", b"close"),
    ]
    lines = [b"%s: %s\r\n" % header for header in headers]
    return b"".join([STATUS_LINE[response.status_code], *lines, b"\r\n", bytes(response.body)])

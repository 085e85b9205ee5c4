"""uvicorn's HTTP protocol with the limits that it has not: on time, headers, pipelining and connections.

A connection is idle until the headers of a request are there, and again when its answer is complete. What it has no
right to is answered in OpenAI's shape if nothing is being answered, and then it is closed.
"""

import asyncio
import logging
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from api.edge.browser import SECURITY_HEADERS
from api.edge.connections import Connections
from api.edge.error_response import error_response
from api.edge.request_id import HEADER, request_id_of
from cluster import metrics
from cluster.config.ingress import IngressConfig
from cluster.errors import HeadersTooLarge, InvalidRequest, Overloaded, RequestTimedOut, ServingError, UrlTooLong

MAX_URL_BYTES = 8192
"""The longest URL of this API has some hundred."""
MAX_HEADERS = 100
"""A browser behind two proxies sends 30."""
MAX_PIPELINED = 16
"""Requests that a connection has sent before the one before them is answered. Hardly any client does. Each keeps its
state, and more are read while they wait.
"""
LINGER_S = 2.0
"""How long a connection that is to be closed is still read from, so that its client reads why before the reset."""
LATE_BODY_S = 5.0
"""How long the rest of a body may come of a request that is answered already."""
MAX_LINGERING = 64
"""More connections that are to be closed are reset at once."""
RETRY_AFTER_S = 1.0

_quiet = logging.getLogger("baton.http")
_quiet.setLevel(logging.ERROR)  # a line per bad request is a way to fill the disk: they are counted


class Gatekeeper:
    """All connections of a listener."""

    def __init__(self, config: IngressConfig) -> None:
        self.config = config
        self.connections: Connections[GuardedProtocol] = Connections(
            config.max_connections, config.max_connections_per_address
        )
        self.ending: set[GuardedProtocol] = set()
        """Which are closed, but for what their clients have yet to read."""

    def sweep(self, now: float) -> None:
        """End what is late. Instead of a timer for each connection and request."""
        for protocol in [*self.connections.open, *self.ending]:
            if protocol.unread_deadline is not None and protocol.unread_deadline <= now:
                protocol.is_unread()
            elif protocol.deadline is not None and protocol.deadline <= now:
                protocol.is_late()


class GuardedProtocol(HttpToolsProtocol):
    def __init__(self, gatekeeper: Gatekeeper, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self.logger = _quiet
        self.deadline: float | None = None
        """By the loop's clock; None while a request is being answered."""
        self.unread_deadline: float | None = None
        """The same, of a client that does not read what is written. None: it reads."""
        self._gatekeeper = gatekeeper
        self._config = gatekeeper.config
        self._in_head = True
        self._has_begun = False
        """The request whose headers are not complete."""
        self._num_head_bytes = 0
        self._num_unparsed_bytes = 0
        """Since the parser has last told of something: of a header, a trailer or a piece's extension without end."""
        self._has_moved = False
        self._num_headers = 0
        self._answering: RequestResponseCycle | None = None
        """The request that the application knows; others may have been sent behind it."""
        self._refusal: ServingError | None = None
        """Why the parser was stopped, if it was not by the parser itself."""
        self._is_ending = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connections = self._gatekeeper.connections
        address = self.client[0] if self.client else ""
        self._expect_within(self._config.idle_timeout_s)
        if not connections.add(self, address):
            self._refuse(Overloaded(f"{connections.most_per_address} connections of {address} are open", RETRY_AFTER_S))
        elif (surplus := connections.surplus()) is self:
            self._refuse(Overloaded(f"{connections.most} connections are open", RETRY_AFTER_S))
        elif surplus is not None:
            surplus.end()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)  # which tells the request that was sent last
        if self._answering is not None:
            self._disconnect(self._answering)
        self._gatekeeper.connections.remove(self)
        self._gatekeeper.ending.discard(self)

    def data_received(self, data: bytes) -> None:
        if self._is_ending:
            return
        self._has_moved = False
        super().data_received(data)
        self._num_unparsed_bytes = 0 if self._has_moved else self._num_unparsed_bytes + len(data)
        if self._num_unparsed_bytes > self._config.max_header_bytes and not self._is_ending:
            self._refuse(self._too_large())

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._refusal or InvalidRequest("the request is not valid HTTP/1.1", None, "invalid_http"))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = self._has_begun = self._has_moved = True
        self._num_head_bytes = self._num_headers = 0
        self._expect_within(self._config.header_timeout_s)

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > MAX_URL_BYTES:
            self._stop(UrlTooLong(f"the URL has more than {MAX_URL_BYTES} bytes", None, "url_too_long"))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._num_headers += 1
        self._num_head_bytes += len(name) + len(value)
        if self._num_headers > MAX_HEADERS:
            self._stop(HeadersTooLarge(f"there are more than {MAX_HEADERS} headers", None, "headers_too_large"))
        if self._num_head_bytes > self._config.max_header_bytes:
            self._stop(self._too_large())
        if self._in_head:  # else it is a trailer: it must not pass for a header that has been checked
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head, self._has_begun, self._has_moved = False, False, True
        self.deadline = None
        self._gatekeeper.connections.is_busy(self)
        if len(self.pipeline) >= MAX_PIPELINED:
            self._stop(InvalidRequest("too many requests are pipelined", None, "too_many_pipelined"))
        if not self.url.startswith(b"/"):
            self._take_host_of_url()
        super().on_headers_complete()
        if self.parser.should_upgrade():  # the parser reads nothing that follows
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._has_moved = True

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head = self._has_moved = True
        if self.cycle.response_complete:
            self._is_idle()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing() or not self.cycle.response_complete:
            return
        if not self.cycle.more_body:
            self._is_idle()
        elif self.expect_100_continue:  # whether the body comes is not known: what comes next could be read as one
            self.end()
        else:
            self._expect_within(LATE_BODY_S)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.unread_deadline = self.loop.time() + self._config.unread_timeout_s

    def resume_writing(self) -> None:
        super().resume_writing()
        self.unread_deadline = None

    def is_unread(self) -> None:
        metrics.HTTP_REFUSALS.labels("client_too_slow").inc()
        self.transport.abort()

    def is_late(self) -> None:
        if self._is_ending:
            self.transport.abort()
        elif self._has_begun:
            self._refuse(RequestTimedOut("the headers of the request came too slowly", None, "header_timeout"))
        else:
            self.end()

    def end(self) -> None:
        """Close the connection, and read what its client still sends until it is closed from there too."""
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
        self._expect_within(LINGER_S)

    def _refuse(self, error: ServingError) -> None:
        metrics.HTTP_REFUSALS.labels(error.code or "").inc()
        answering = self._answering
        if answering is not None and answering is self.cycle and answering.more_body and not answering.response_started:
            self._disconnect(answering)  # the application waits for the rest of this body, which never comes
        is_free = answering is None or answering.response_complete or answering.disconnected
        if is_free and not self.transport.is_closing():
            self.transport.write(_whole_answer(error))
        self.end()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    @staticmethod
    def _disconnect(cycle: RequestResponseCycle) -> None:
        if not cycle.response_complete:
            cycle.disconnected = True
        cycle.message_event.set()

    def _stop(self, error: ServingError) -> None:
        """In a callback of the parser, which then fails."""
        self._refusal = error
        raise error

    def _too_large(self) -> ServingError:
        most = self._config.max_header_bytes
        return HeadersTooLarge(f"the headers have more than {most} bytes", None, "headers_too_large")

    def _take_host_of_url(self) -> None:
        """Of a request that names its host there, the header is ignored (RFC 9112)."""
        url = httptools.parse_url(self.url)
        if url.host:
            port = b"" if url.port is None else b":%d" % url.port
            self.headers[:] = [header for header in self.headers if header[0] != b"host"] + [(b"host", url.host + port)]

    def _is_idle(self) -> None:
        self._gatekeeper.connections.is_idle(self)
        self._expect_within(self._config.idle_timeout_s)

    def _expect_within(self, seconds: float) -> None:
        self.deadline = self.loop.time() + seconds


def _whole_answer(error: ServingError) -> bytes:
    response = error_response(error)
    headers = [
        *response.raw_headers,
        *SECURITY_HEADERS,
        (HEADER, request_id_of(None).encode()),
        (b"connection", b"close"),
    ]
    lines = [b"%s: %s\r\n" % header for header in headers]
    return b"".join([STATUS_LINE[response.status_code], *lines, b"\r\n", bytes(response.body)])

"""The HTTP listener of an ingress replica: uvicorn inside the replica's own process.

Clients connect straight to the replica. Serve's proxy would cost about 200 microseconds of CPU per streamed token; its
cheaper replacement, HAProxy, still costs 14, must be chosen in the environment before Ray starts, and listens on all
interfaces.
"""

import asyncio
import socket

import uvicorn
from starlette.datastructures import QueryParams
from starlette.types import ASGIApp, Receive, Scope, Send

from api.wire.errors import error_response
from api.wire.query import flag_in
from cluster.config.ingress import IngressConfig
from cluster.errors import InvalidRequest, Overloaded

STREAMED_AGAIN = "/v1/responses/"
"""What a GET may stream."""
KEEP_ALIVE_S = 75
"""Longer than the idle timeout of common load balancers (60 s), which would else send into a closing connection."""
BIND_TIMEOUT_S = 10.0
"""A replica that this one replaces may still be finishing its streams."""
BIND_RETRY_S = 0.2
RETRY_AFTER_S = 1.0
BACKLOG = 2048
SEND_BUFFER_BYTES = 128 << 10
"""Of a connection. The kernel would by itself take megabytes, and a client that reads nothing be noticed late."""


class HttpListener:
    def __init__(self, server: uvicorn.Server, serving: asyncio.Task[None]) -> None:
        self._server = server
        self._serving = serving

    @classmethod
    async def start(cls, app: ASGIApp, config: IngressConfig) -> "HttpListener":
        """Raises OSError when the address cannot be listened on."""
        listening = await _bound(config)
        server = uvicorn.Server(
            uvicorn.Config(
                _Limited(app, config.max_ongoing_requests),
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
            )
        )
        return cls(server, asyncio.create_task(server.serve(sockets=[listening])))

    def check_health(self) -> None:
        """Raises when nobody listens any more."""
        if self._serving.done():
            raise RuntimeError("the HTTP listener has ended")

    async def close(self) -> None:
        """Take no more connections and wait for the open requests."""
        self._server.should_exit = True
        await self._serving


class _Limited:
    """Answers 503 instead of taking more than so many POST requests and streams at a time. A full replica is a healthy
    one: what asks for its health or metrics gets an answer.
    """

    def __init__(self, app: ASGIApp, max_open: int) -> None:
        self._app = app
        self._max_open = max_open
        self._num_open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _is_counted(scope):
            await self._app(scope, receive, send)
            return
        if self._num_open >= self._max_open:
            refused = Overloaded(f"this ingress replica has {self._max_open} open requests", RETRY_AFTER_S)
            await error_response(refused)(scope, receive, send)
            return
        self._num_open += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._num_open -= 1


def _is_counted(scope: Scope) -> bool:
    if scope.get("method") == "POST":
        return True
    if not str(scope.get("path", "")).startswith(STREAMED_AGAIN):
        return False
    try:
        return flag_in(QueryParams(scope.get("query_string", b"")), "stream")
    except InvalidRequest:  # which it is told by whoever reads it
        return False


async def _bound(config: IngressConfig) -> socket.socket:
    deadline = asyncio.get_running_loop().time() + BIND_TIMEOUT_S
    while True:
        try:
            return _bind(config.host, config.port, shared=config.replicas > 1)
        except OSError as error:
            if asyncio.get_running_loop().time() > deadline:
                raise OSError(
                    f"cannot listen on {config.host}:{config.port} ({error.strerror}): choose another ingress.port; "
                    "if it is Serve's own proxy that listens there, set proxy_location: Disabled"
                ) from error
        await asyncio.sleep(BIND_RETRY_S)


def _bind(host: str, port: int, *, shared: bool) -> socket.socket:
    """`shared`: several replicas of one machine listen on the port, and the kernel spreads the connections."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # which its connections inherit
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening

"""The HTTP listener of an ingress replica: uvicorn inside the replica's own process.

Clients connect straight to the replica. Serve's proxy would cost about 200 microseconds of CPU per streamed token; its
cheaper replacement, HAProxy, still costs 14, must be chosen in the environment before Ray starts, and listens on all
interfaces.
"""

import asyncio
import logging
import math
import socket
from functools import partial

import uvicorn
from starlette.types import ASGIApp

from api.server.protocol import Gatekeeper, GuardedProtocol
from cluster.config.ingress import IngressConfig
from cluster.network.open_files import allow_open_files

logger = logging.getLogger("baton.ingress")

BIND_TIMEOUT_S = 10.0
"""A replica that this one replaces may still be finishing its streams."""
BIND_RETRY_S = 0.2
BACKLOG = 2048
SEND_BUFFER_BYTES = 128 << 10
"""Of a connection. The kernel would by itself take megabytes, and a client that reads nothing be noticed late."""
MAX_SWEEP_S = 1.0
SWEEPS = 5
"""Connections are looked at so often in the shortest time that they have. More often costs CPU, less often lets them
live longer than that.
"""
OTHER_FILES = 1024
"""What the process opens beside the connections of clients, at most."""


class HttpListener:
    def __init__(self, server: uvicorn.Server, serving: asyncio.Task[None], gatekeeper: Gatekeeper) -> None:
        self._server = server
        self._serving = serving
        self.gatekeeper = gatekeeper
        self._sweeping = asyncio.create_task(_sweep(gatekeeper))

    @classmethod
    async def start(cls, app: ASGIApp, config: IngressConfig) -> "HttpListener":
        """Raises OSError when the address cannot be listened on."""
        listening = await _bound(config)
        _allow_files(config.max_connections + OTHER_FILES)
        gatekeeper = Gatekeeper(config)
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=partial(GuardedProtocol, gatekeeper),  # type: ignore[arg-type]
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=math.ceil(config.idle_timeout_s),
            )
        )
        return cls(server, asyncio.create_task(server.serve(sockets=[listening])), gatekeeper)

    def check_health(self) -> None:
        """Raises when nobody listens any more."""
        if self._serving.done():
            raise RuntimeError("the HTTP listener has ended")

    async def close(self) -> None:
        """Take no more connections and wait for the open requests."""
        self._server.should_exit = True
        await self._serving
        self._sweeping.cancel()


async def _sweep(gatekeeper: Gatekeeper) -> None:
    config, loop = gatekeeper.config, asyncio.get_running_loop()
    interval_s = min(MAX_SWEEP_S, config.header_timeout_s / SWEEPS, config.idle_timeout_s / SWEEPS)
    while True:
        await asyncio.sleep(interval_s)
        gatekeeper.sweep(loop.time())


def _allow_files(number: int) -> None:
    """A process without file descriptors accepts no connection, whoever holds them."""
    if (allowed := allow_open_files(number)) < number:
        logger.warning(
            "only %d files may be open: ingress.max_connections needs %d (ulimit -n), or must be lower", allowed, number
        )


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

"""The HTTP listener of an ingress replica: uvicorn inside the replica's own process.

Clients connect to the replica without Serve's proxy, which would cost CPU for each streamed token: about 200
microseconds, measured once by hand. HAProxy, with which Serve can replace its proxy, costs less (14 microseconds in the
same measurement), but must be chosen in the environment before Ray starts, and listens on all interfaces.
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
"""Longest wait for the port, in seconds. The predecessor of this replica may still finish its streams on the port. With
a lower value, a replacement fails while its predecessor ends; with a higher value, a wrong port is reported later.
"""
BIND_RETRY_S = 0.2
"""Pause between two tries to bind the port, in seconds. A lower value costs CPU; a higher value delays the start."""
BACKLOG = 2048
"""Connections that the kernel completes before the process accepts them, in number. With a lower value, a burst of new
connections is dropped; with a higher value, more connections wait in a process that is too busy.
"""
SEND_BUFFER_BYTES = 128 << 10
"""Size of a connection's send buffer in the kernel, in bytes. The kernel's own choice grows to megabytes. With a higher
value, a client that reads nothing is noticed later; with a lower value, a fast client waits for the event loop.
"""
MAX_SWEEP_S = 1.0
"""Longest pause between two sweeps, in seconds. A lower value costs CPU; with a higher value, connections outlive their
deadlines for longer.
"""
SWEEPS = 5
"""Sweeps within the shortest time-out of a connection, in number. A higher value costs CPU; with a lower value,
connections outlive their deadlines for longer.
"""
OTHER_FILES = 1024
"""Files that the process may open beside the connections of clients, in number. With a lower value, a process with all
connections open cannot open a file; with a higher value, fewer machines permit the limit, and more log the warning.
"""


class HttpListener:
    def __init__(self, server: uvicorn.Server, serving: asyncio.Task[None], gatekeeper: Gatekeeper) -> None:
        self._server = server
        self._serving = serving
        self._sweeping = asyncio.create_task(_sweep(gatekeeper))

    @classmethod
    async def start(cls, app: ASGIApp, gatekeeper: Gatekeeper) -> "HttpListener":
        """A listener on the address of the gatekeeper's config. Raises OSError if the address cannot be bound."""
        config = gatekeeper.config
        listening = await _bound(config)
        _allow_files(config.max_connections + OTHER_FILES)
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
        """Raise RuntimeError if the listener has ended."""
        if self._serving.done():
            raise RuntimeError("the HTTP listener has ended")

    async def close(self) -> None:
        """Accept no more connections, and wait for the end of the open requests."""
        self._server.should_exit = True
        await self._serving
        self._sweeping.cancel()


async def _sweep(gatekeeper: Gatekeeper) -> None:
    config, loop = gatekeeper.config, asyncio.get_running_loop()
    shortest_s = min(config.header_timeout_s, config.idle_timeout_s, config.unread_timeout_s)
    interval_s = min(MAX_SWEEP_S, shortest_s / SWEEPS)
    while True:
        await asyncio.sleep(interval_s)
        gatekeeper.sweep(loop.time())


def _allow_files(number: int) -> None:
    """Raise the limit of open files: a process that has used up its file descriptors accepts no connection."""
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
                    "if Serve's own proxy listens there, set proxy_location: Disabled"
                ) from error
        await asyncio.sleep(BIND_RETRY_S)


def _bind(host: str, port: int, *, shared: bool) -> socket.socket:
    """A socket that listens. If `shared`, several replicas of one machine can listen on the port, and the kernel
    spreads the connections over the replicas.
    """
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # connections inherit the option
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening

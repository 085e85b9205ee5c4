"""The HTTP listener of an ingress replica: uvicorn inside the replica's own process.

Clients connect to the replica without Serve's proxy, which would cost CPU for each streamed token: about 200
microseconds, measured once by hand. HAProxy, with which Serve can replace its proxy, costs less (14 microseconds in the
same measurement), but must be chosen in the environment before Ray starts, and listens on all interfaces.
"""

import asyncio
import logging
import math
import socket
from contextlib import suppress
from functools import partial

import uvicorn
from starlette.types import ASGIApp

from api.server.port import BACKLOG, listening_socket
from api.server.protocol import Gatekeeper, GuardedProtocol
from api.server.socket_protocol import GuardedSocket
from api.wire.response_headers import SERVICE
from cluster.network.open_files import allow_open_files

logger = logging.getLogger("baton.ingress")

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
    def __init__(
        self, server: uvicorn.Server, listening: socket.socket, serving: asyncio.Task[None], gatekeeper: Gatekeeper
    ) -> None:
        self._server = server
        self._listening = listening
        self._serving = serving
        self._gatekeeper = gatekeeper
        self._sweeping = asyncio.create_task(_sweep(gatekeeper))

    @classmethod
    async def start(
        cls, app: ASGIApp, gatekeeper: Gatekeeper, service: str, setting: str = "ingress.port"
    ) -> "HttpListener":
        """A listener on the address of the gatekeeper's config, for a replica of `service`. `setting`: the key of the
        Serve config with the port. Raises OSError if the address cannot be bound.
        """
        config = gatekeeper.config
        listening = await listening_socket(config, service, setting)
        _allow_files(config.max_connections + OTHER_FILES)
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=partial(GuardedProtocol, gatekeeper),  # type: ignore[arg-type]
                ws=partial(GuardedSocket, gatekeeper),  # type: ignore[arg-type]
                ws_max_size=config.max_body_bytes,
                ws_ping_interval=config.websockets.ping_interval_s,
                ws_ping_timeout=config.websockets.ping_interval_s,
                ws_per_message_deflate=False,  # a short message could expand to a very long one
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                headers=[(SERVICE, service)],
                proxy_headers=False,
                timeout_keep_alive=math.ceil(config.idle_timeout_s),
            )
        )
        # uvicorn closes its socket when it ends. Through the other one, the connections of that moment are taken
        serving = asyncio.create_task(server.serve(sockets=[listening.dup()]))
        while not (server.started or serving.done()):  # noqa: ASYNC110  # uvicorn tells nobody
            await asyncio.sleep(0)
        return cls(server, listening, serving, gatekeeper)

    def check_health(self) -> None:
        """Raise RuntimeError if the listener has ended."""
        if self._serving.done():
            raise RuntimeError("the HTTP listener has ended")

    async def close(self) -> None:
        """Accept no more connections, and wait for the end of the open requests, for `patience_s` at most. Then they
        are cut off as if their clients had left. A second call has no effect.
        """
        if self._gatekeeper.is_leaving:
            return
        self._gatekeeper.leave()
        try:
            async with asyncio.timeout(self._gatekeeper.config.patience_s):
                await self._accept_last()
                self._server.should_exit = True
                await asyncio.shield(self._serving)
        except TimeoutError:
            self._server.should_exit = True
            self._gatekeeper.abort()
            await self._serving
        self._sweeping.cancel()

    async def _accept_last(self) -> None:
        """Stop asyncio's part, and take the connections that the kernel has completed, and would reset."""
        loop, server = asyncio.get_running_loop(), self._server
        for accepting in server.servers:
            for one in accepting.sockets:
                loop.remove_reader(one.fileno())
            # A connection that asyncio has taken is lost if its server closes before its task runs
            await asyncio.sleep(0)
            accepting.close()
        of_uvicorn = {"config": server.config, "server_state": server.server_state, "app_state": {}}
        for taken in _accepted(self._listening):
            await loop.connect_accepted_socket(partial(GuardedProtocol, self._gatekeeper, **of_uvicorn), taken)


def _accepted(listening: socket.socket) -> list[socket.socket]:
    """The connections of a listening socket, which is closed at once: more would come while these are served."""
    taken: list[socket.socket] = []
    with listening, suppress(OSError):  # BlockingIOError if there is none left
        while len(taken) < 2 * BACKLOG:
            one, _ = listening.accept()
            one.setblocking(False)
            taken.append(one)
    return taken


async def _sweep(gatekeeper: Gatekeeper) -> None:
    config, loop = gatekeeper.config, asyncio.get_running_loop()
    sockets = config.websockets
    of_requests_s = min(config.header_timeout_s, config.idle_timeout_s, config.unread_timeout_s)
    shortest_s = min(of_requests_s, config.body_grace_s, sockets.idle_timeout_s, sockets.lifetime_s)
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

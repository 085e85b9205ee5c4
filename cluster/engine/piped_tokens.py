"""The worker's end of the token pipe (cluster/engine_core/token_pipe.py)."""

import asyncio
import logging
import shutil
import socket
import tempfile
import weakref
from collections.abc import Callable

import msgspec

from cluster.engine_core.token_pipe import LENGTH, PipedStep

logger = logging.getLogger("baton.engine")
_decode = msgspec.msgpack.Decoder(PipedStep).decode


class TokenPipeSocket:
    """Listens for the engine's core, from before its start until it is connected. Only this user can reach it."""

    def __init__(self) -> None:
        folder = tempfile.mkdtemp(prefix="baton-pipe-")
        self._remove_name = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.path = f"{folder}/tokens"
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(self.path)
        self._listening.listen(1)
        self._listening.setblocking(False)

    async def read(self, take: Callable[[PipedStep], None], on_lost: Callable[[], None]) -> None:
        """Call `take` with each step from now on, and `on_lost` once when no more can come. The engine has started.

        Raises:
            BlockingIOError: the engine's core has not connected.
        """
        with self._listening:
            connected, _ = self._listening.accept()
        self._remove_name()
        connected.setblocking(False)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: _Reader(take, on_lost), connected)


class _Reader(asyncio.Protocol):
    def __init__(self, take: Callable[[PipedStep], None], on_lost: Callable[[], None]) -> None:
        self._take = take
        self._on_lost = on_lost
        self._received = bytearray()

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        begin = 0
        while len(received) - begin >= LENGTH.size:
            body = begin + LENGTH.size
            end = body + LENGTH.unpack_from(received, begin)[0]
            if len(received) < end:
                break
            self._take(_decode(received[body:end]))
            begin = end
        del received[:begin]

    def connection_lost(self, exc: Exception | None) -> None:
        """The engine's core has ended, or sent something that is no step: the event loop closes the connection then."""
        if exc is not None:
            logger.error("the token pipe of the engine broke: %r", exc)
        self._on_lost()

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

MOST_AT_ONCE_BYTES = 1 << 16
"""Bytes that are read before the event loop may run. More delays other tasks; fewer takes a burst in more turns."""

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

    def read(self, take: Callable[[PipedStep], None], on_lost: Callable[[], None]) -> None:
        """On the running event loop, call `take` with each step from now on, and `on_lost` once when no more can come.
        The engine has started. A `take` that raises ends the pipe.

        Raises:
            BlockingIOError: the engine's core has not connected.
        """
        with self._listening:
            connected, _ = self._listening.accept()
        self._remove_name()
        connected.setblocking(False)
        _Reader(connected, take, on_lost)


class _Reader:
    """Lives with its socket's place in the event loop."""

    def __init__(
        self, connected: socket.socket, take: Callable[[PipedStep], None], on_lost: Callable[[], None]
    ) -> None:
        self._connected = connected
        self._take = take
        self._on_lost = on_lost
        self._received = bytearray()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(connected, self._on_readable)

    def _on_readable(self) -> None:
        try:
            data = self._connected.recv(MOST_AT_ONCE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(error)
            return
        if not data:
            self._lose(None)
            return
        self._received += data
        try:
            while (step := self._next_step()) is not None:
                self._take(step)
        except Exception as error:  # an answer may lack a part of this step: none may go on as if it were whole
            self._lose(error)

    def _next_step(self) -> PipedStep | None:
        """Take the first step out of what was received, so that it is never taken twice. None if it is not complete.
        Raises MsgspecError.
        """
        received = self._received
        if len(received) < LENGTH.size:
            return None
        end = LENGTH.size + LENGTH.unpack_from(received)[0]
        if len(received) < end:
            return None
        body = received[LENGTH.size : end]
        del received[:end]
        return _decode(body)

    def _lose(self, error: Exception | None) -> None:
        """The engine's core has ended, or there is an error."""
        if error is not None:
            logger.error("the token pipe of the engine broke: %r", error, exc_info=error)
        self._loop.remove_reader(self._connected)
        self._connected.close()
        self._on_lost()

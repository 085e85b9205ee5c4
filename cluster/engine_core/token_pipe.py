"""The token pipe: how the tokens of most requests leave the engine's core.

vLLM's own way from the core to the worker's process takes half a millisecond of CPU time per step, however few tokens
the step has: ZeroMQ, the layers of `AsyncLLM`, and statistics. The pipe is a Unix socket on which the core sends the
worker one short message per step. cluster/engine_scheduler/piping_scheduler.py decides what takes the pipe, and
cluster/engine/token_tap.py puts both ways together again.
"""

import logging
import socket
import struct
import threading
from collections import deque
from typing import Any

import msgspec

logger = logging.getLogger("baton.engine_core")

TOKEN_PIPE = "baton_token_pipe"
"""Key of the socket's path in the settings of the engine's connector, the only configuration of Baton's that the
engine's core has.
"""
LENGTH = struct.Struct(">I")
"""A message is its length in bytes and then a `PipedStep` in MessagePack."""


class PipedOutput(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """What one engine step produced for one sequence."""

    request_id: str
    """vLLM's internal id of the sequence."""
    token_ids: list[int]
    finish_reason: int | None = None
    """vLLM's number of the reason. None while the sequence goes on."""
    stop_reason: int | str | None = None


class PipedStep(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """All that one engine step sends through the pipe."""

    at: float
    """The time of the outputs, in seconds of `time.monotonic`."""
    outputs: list[PipedOutput]


_encode = msgspec.msgpack.Encoder().encode


def is_piped(params: Any) -> bool:
    """Whether the tokens of a request with these sampling parameters take the pipe, all but the first ones of a
    sequence. The worker and the engine's core both ask. vLLM's output processor must see every output of a request
    with stop strings, and log-probabilities have no place in the pipe.
    """
    return params is not None and not params.detokenize and params.logprobs is None and params.prompt_logprobs is None


class TokenPipe:
    """The core's end. It never makes a step wait: what the socket does not take at once is kept, without a limit, as
    vLLM keeps the outputs of its own way, and a thread sends it.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._unsent: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._sending: threading.Thread | None = None
        self._is_closed = False

    @classmethod
    def connect(cls, path: str) -> "TokenPipe":
        """Raises OSError if the worker does not listen."""
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connected.connect(path)
        return cls(connected)

    def send(self, step: PipedStep) -> None:
        """Send a step after all earlier ones. Does nothing once the worker is gone."""
        body = _encode(step)
        message = LENGTH.pack(len(body)) + body
        with self._changed:
            if not self._unsent:
                message = message[self._sent_at_once(message) :]
            if message and not self._is_closed:
                self._unsent.append(message)
                self._send_later()

    def _sent_at_once(self, message: bytes) -> int:
        """Bytes that the socket takes without a wait."""
        try:
            return self._socket.send(message, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return 0
        except OSError as error:
            self._lose(error)
            return len(message)

    def _send_later(self) -> None:
        if self._sending is None:
            self._sending = threading.Thread(target=self._send_unsent, name="token-pipe", daemon=True)
            self._sending.start()
        self._changed.notify()

    def _send_unsent(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._unsent)
                message = self._unsent[0]  # stays there while it is sent, so that no later message overtakes it
            try:
                self._socket.sendall(message, socket.MSG_NOSIGNAL)
            except OSError as error:
                with self._changed:
                    self._lose(error)
                return
            with self._changed:
                self._unsent.popleft()

    def _lose(self, error: OSError) -> None:
        if not self._is_closed:
            logger.warning("the worker takes no tokens any more: %s", error)
        self._is_closed = True
        self._unsent.clear()
        self._socket.close()

"""The answer to an HTTP request within a time that counts for the whole exchange.

The timeouts of sockets are for each read, so a peer that sends a byte now and then would hold its caller for ever. Here
a timer ends the connection. The look-up of the peer's name is not bounded.
"""

import socket
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from io import BytesIO
from types import TracebackType
from typing import Any
from urllib.error import HTTPError
from urllib.request import BaseHandler, HTTPHandler, HTTPSHandler, ProxyHandler, Request

MOST_ERROR_BYTES = 1 << 20
"""Most bytes of the body of an error that are read. More lets whatever answers fill the memory; fewer cuts the
explanation of an error.
"""


def answer_of(request: Request | str, timeout_s: float, most_bytes: int, *handlers: BaseHandler) -> bytes:
    """The body of the answer, as far as `most_bytes`. The proxies of the environment are not used.

    Raises HTTPError, which has its body, for an error of the peer, and TimeoutError if the answer is not whole in time.
    Otherwise raises what urllib does: OSError, HTTPException or ValueError.
    """
    with _Deadline(timeout_s) as deadline:
        opener = urllib.request.build_opener(ProxyHandler({}), _Plain(deadline), _Secure(deadline), *handlers)
        try:
            with opener.open(request, timeout=timeout_s) as answer:
                body: bytes = answer.read(most_bytes)
                return body
        except HTTPError as error:
            with error:
                read = BytesIO(error.read(MOST_ERROR_BYTES))
            raise HTTPError(error.url, error.code, error.reason, error.headers, read) from None


class _Deadline:
    """Ends the connections of an exchange when its time is over."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._until = time.monotonic() + timeout_s
        self._timer = threading.Timer(timeout_s, self._cut)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._held: list[socket.socket] = []
        """Duplicates of the sockets: TLS takes the sockets themselves over."""

    def __enter__(self) -> "_Deadline":
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raises TimeoutError for whatever the end of a connection has caused."""
        self._timer.cancel()
        with self._lock:
            for held in self._held:
                held.close()
            self._held.clear()
        if self._is_over and (error is None or isinstance(error, OSError | HTTPException | ValueError)):
            raise TimeoutError(f"no whole answer within {self._timeout_s:g} s") from error

    def hold(self, connected: socket.socket) -> None:
        with self._lock:
            self._held.append(connected.dup())
        if self._is_over:
            self._cut()

    @property
    def _is_over(self) -> bool:
        return time.monotonic() >= self._until

    def _cut(self) -> None:
        with self._lock:
            for held in self._held:
                with suppress(OSError):
                    held.shutdown(socket.SHUT_RDWR)


class _HeldConnection(HTTPConnection):
    hold: Callable[[socket.socket], None]

    def connect(self) -> None:
        super().connect()
        self.hold(self.sock)


class _HeldTls(HTTPSConnection, _HeldConnection):
    """Is held from before its handshake on: HTTPSConnection connects as its base does, and shakes hands then."""


class _Plain(HTTPHandler):
    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def http_open(self, req: Request) -> HTTPResponse:
        return self.do_open(_making(_HeldConnection, self._deadline), req)


class _Secure(HTTPSHandler):
    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def https_open(self, req: Request) -> HTTPResponse:
        return self.do_open(_making(_HeldTls, self._deadline), req)


def _making(kind: type[_HeldConnection], deadline: _Deadline) -> Any:
    """What urllib makes a connection with."""

    def make(host: str, **options: Any) -> _HeldConnection:
        connection = kind(host, **options)
        connection.hold = deadline.hold
        return connection

    return make

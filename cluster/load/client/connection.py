"""One HTTP/1.1 connection to an endpoint, and the exchange that it has in progress.

httptools parses what comes. Of a streamed answer, each part goes to its reader at once, with the time at which the
bytes came.
"""

import asyncio
import time
from typing import cast

import httptools

from cluster.load.client.answer import BrokenAnswer, StreamedAnswer, TooLargeAnswer

MAX_HEAD_BYTES = 64 * 1024
"""Most bytes of an answer before its body. More let an endpoint fill memory with headers; fewer refuse long ones."""
MAX_BODY_BYTES = 64 * 1024 * 1024
"""Most bytes of an answer. An answer of 100,000 tokens has 25 MB of events. More have an endless stream last longer;
fewer fail long answers.
"""
MAX_WHOLE_BYTES = 64 * 1024
"""Bytes that are kept of a body that is no event stream. More keep longer errors of an endpoint; fewer cut JSON off."""
OK = 200
EVENT_STREAM = b"text/event-stream"
_KEPT_HEADERS = frozenset({b"content-type", b"retry-after"})


class CutShort(ConnectionError):
    """The connection ended before the answer did."""


class LoadExchange:
    """One request and its answer. Everything that comes is kept here, within bounds."""

    def __init__(self, request: bytes, done: "asyncio.Future[None]") -> None:
        self.request = request
        self.done = done
        """Has a result when the answer is whole, and an error when it will never be."""
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        """Those of the answer that a client reads, with names in lower case."""
        self.stream = StreamedAnswer()
        self._whole = bytearray()
        self.num_bytes = 0
        self.is_streamed = False
        self.has_head = False

    @property
    def whole(self) -> bytes:
        """The begin of the body, if it is no event stream."""
        return bytes(self._whole)

    def headers_complete(self, status: int) -> None:
        self.status, self.has_head = status, True
        self.is_streamed = status == OK and self.headers.get(b"content-type", b"").lower().startswith(EVENT_STREAM)

    def take(self, part: bytes, now: float) -> None:
        if self.is_streamed:
            self.stream.feed(part, now)
        else:
            self._whole += part[: MAX_WHOLE_BYTES - len(self._whole)]


class EndpointConnection(asyncio.Protocol):
    """One connection. httptools calls the `on_` methods."""

    def __init__(self) -> None:
        self._exchange: LoadExchange | None = None
        self._now = 0.0
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._is_whole = self._is_kept = False

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def begin(self, exchange: LoadExchange) -> None:
        """Send a request. The connection must be open and have no other exchange."""
        assert self._transport is not None and self._exchange is None
        self._exchange, self._is_whole = exchange, False
        self._transport.write(exchange.request)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            self.close()  # nobody has asked for it
            return
        self._now = time.perf_counter()
        exchange.num_bytes += len(data)
        try:
            if exchange.num_bytes > (MAX_BODY_BYTES if exchange.has_head else MAX_HEAD_BYTES):
                raise TooLargeAnswer(f"more than {exchange.num_bytes:,} bytes came")
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self._end(error.__context__ if isinstance(error.__context__, ValueError) else BrokenAnswer(repr(error)))
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._end(BrokenAnswer(f"no HTTP: {error!r}"))
        except ValueError as error:
            self._end(error)
        else:
            if self._is_whole:
                self._end(None)

    def connection_lost(self, error: Exception | None) -> None:
        if self._exchange is not None:
            self._lost(self._exchange, error)

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if self._exchange is not None and name in _KEPT_HEADERS:
            self._exchange.headers[name] = value

    def on_headers_complete(self) -> None:
        if self._exchange is not None:
            self._exchange.headers_complete(self._parser.get_status_code())

    def on_body(self, part: bytes) -> None:
        if self._exchange is not None:
            self._exchange.take(part, self._now)

    def on_message_complete(self) -> None:
        # An interim answer (status 1xx) ends, too, and the answer follows
        self._is_whole = self._parser.get_status_code() >= OK
        self._is_kept = self._parser.should_keep_alive()  # the parser knows only now

    def _lost(self, exchange: LoadExchange, error: Exception | None) -> None:
        """An answer without a length ends with its connection, as HTTP/1.0 has it."""
        if exchange.is_streamed and exchange.stream.is_complete:
            self._end(None)
        else:
            self._end(CutShort(str(error or "the connection ended before the answer")))

    def _end(self, error: BaseException | None) -> None:
        exchange, self._exchange = self._exchange, None
        if error is not None or not self._is_kept:
            self.close()
        if exchange is None or exchange.done.done():
            return
        if error is None:
            exchange.done.set_result(None)
        else:
            exchange.done.set_exception(error)

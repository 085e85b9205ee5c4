"""The limits on the head of a request: its URL, its headers, and bytes from which the parser learns nothing."""

from typing import NoReturn

from api.edge.head import head_of
from cluster.errors import HeadersTooLarge, InvalidRequest, ServingError, UrlTooLong

MAX_URL_BYTES = 8192
"""Bytes of a URL. The longest URL of this API has some hundred. More takes memory; fewer refuses clients with long
queries.
"""
MAX_HEADERS = 100
"""Headers of a request. A browser behind two proxies sends 30. More takes memory; fewer refuses clients behind
proxies.
"""
MAX_PIPELINED = 16
"""Requests that a connection may send before its first request is answered. Hardly any client pipelines. More takes
memory for each connection; fewer refuses clients that pipeline.
"""


class HeadLimits:
    """Counts what the parser of one connection has read. The methods that check raise an error inside a callback of the
    parser, which then stops; `refusal` keeps the error.
    """

    def __init__(self, max_header_bytes: int) -> None:
        self._max_header_bytes = max_header_bytes
        self.is_open = True
        """The next header belongs to the head of a request. False: it is a trailer behind a body."""
        self.has_begun = False
        """A request has begun whose headers are not complete."""
        self.has_moved = False
        """The parser has learned something since `count_unparsed` was called."""
        self.refusal: ServingError | None = None
        """The error of a check that has stopped the parser. None if the parser has not been stopped by a check."""
        self._num_bytes = 0
        self._num_headers = 0
        self._num_unparsed_bytes = 0
        """Bytes since the parser has last learned something: of a header, a trailer or a chunk extension without end.
        """

    def begin(self) -> None:
        self.is_open = self.has_begun = self.has_moved = True
        self._num_bytes = self._num_headers = 0

    def complete(self) -> None:
        self.is_open, self.has_begun, self.has_moved = False, False, True

    def end_of_message(self) -> None:
        self.is_open = self.has_moved = True

    def check_url(self, url: bytes) -> None:
        if len(url) > MAX_URL_BYTES:
            self._stop(UrlTooLong(f"the URL has more than {MAX_URL_BYTES} bytes", None, "url_too_long"))

    def check_header(self, name: bytes, value: bytes) -> None:
        self._num_headers += 1
        self._num_bytes += len(name) + len(value)
        if self._num_headers > MAX_HEADERS:
            self._stop(HeadersTooLarge(f"there are more than {MAX_HEADERS} headers", None, "headers_too_large"))
        if self._num_bytes > self._max_header_bytes:
            self._stop(self.too_large())

    def check_pipelined(self, number: int) -> None:
        """`number`: requests that wait behind the one that is being answered."""
        if number >= MAX_PIPELINED:
            self._stop(InvalidRequest("too many requests are pipelined", None, "too_many_pipelined"))

    def check_no_body(self, headers: list[tuple[bytes, bytes]]) -> None:
        """For a request that opens a WebSocket."""
        if head_of([(name.lower(), value) for name, value in headers]).has_body:
            self._stop(InvalidRequest("a request for a WebSocket has no body", None, "invalid_websocket_handshake"))

    def count_unparsed(self, num_bytes: int) -> bool:
        """Count bytes that the parser has read. True if the parser has learned nothing from too many bytes."""
        self._num_unparsed_bytes = 0 if self.has_moved else self._num_unparsed_bytes + num_bytes
        self.has_moved = False
        return self._num_unparsed_bytes > self._max_header_bytes

    def too_large(self) -> ServingError:
        most = self._max_header_bytes
        return HeadersTooLarge(f"the headers have more than {most} bytes", None, "headers_too_large")

    def _stop(self, error: ServingError) -> NoReturn:
        self.refusal = error
        raise error

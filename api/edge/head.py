"""The headers of a request that decide whether the edge admits the request."""

from typing import NamedTuple

from cluster.errors import InvalidRequest

Headers = list[tuple[bytes, bytes]]
"""Headers as ASGI gives them: with names in lower case, in the order in which the client has sent them."""

_WANTED = {
    b"host": "host",
    b"origin": "origin",
    b"content-type": "content_type",
    b"content-encoding": "content_encoding",
    b"content-length": "content_length",
    b"transfer-encoding": "transfer_encoding",
    b"upgrade": "upgrade",
    b"x-request-id": "request_id",
    b"traceparent": "trace_parent",
    b"tracestate": "trace_state",
}


class Head(NamedTuple):
    host: bytes | None = None
    origin: bytes | None = None
    content_type: bytes | None = None
    content_encoding: bytes | None = None
    content_length: bytes | None = None
    transfer_encoding: bytes | None = None
    upgrade: bytes | None = None
    request_id: bytes | None = None
    trace_parent: bytes | None = None
    trace_state: bytes | None = None

    @property
    def has_body(self) -> bool:
        return self.transfer_encoding is not None or self.content_length not in (None, b"0")

    @property
    def body_bytes(self) -> int:
        """Bytes of the body according to Content-Length. 0 if the header is absent or is not a number."""
        length = self.content_length or b""
        return int(length) if length.isdigit() and len(length) < MAX_DIGITS else 0


MAX_DIGITS = 19
"""Digits from which on a Content-Length counts as 0. The bytes that arrive are counted in any case, and the HTTP parser
refuses a length that does not fit 64 bits.
"""


def head_of(headers: Headers) -> Head:
    """The head of a request. The first value counts if a header is repeated."""
    found: dict[str, bytes] = {}
    for name, value in headers:
        if name in _WANTED:
            found.setdefault(_WANTED[name], value)
    return Head(**found)


def check_repeated(headers: Headers) -> None:
    """Raises InvalidRequest for a repeated header of which a proxy and the ingress could read different values."""
    seen = [name for name, _ in headers if name in (b"host", b"origin", b"content-type", b"content-encoding")]
    if len(seen) != len(set(seen)):
        raise InvalidRequest(
            "each of the headers Host, Origin, Content-Type and Content-Encoding may be sent only once",
            None,
            "repeated_header",
        )

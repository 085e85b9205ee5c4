"""The headers of a request that decide whether it is let in. Pure."""

from typing import NamedTuple

from cluster.errors import InvalidRequest

Headers = list[tuple[bytes, bytes]]
"""As ASGI has them: names in lower case, in the order in which they were sent."""

_WANTED = {
    b"host": "host",
    b"origin": "origin",
    b"content-type": "content_type",
    b"content-length": "content_length",
    b"transfer-encoding": "transfer_encoding",
    b"upgrade": "upgrade",
    b"x-request-id": "request_id",
}


class Head(NamedTuple):
    host: bytes | None = None
    origin: bytes | None = None
    content_type: bytes | None = None
    content_length: bytes | None = None
    transfer_encoding: bytes | None = None
    upgrade: bytes | None = None
    request_id: bytes | None = None

    @property
    def has_body(self) -> bool:
        return self.transfer_encoding is not None or self.content_length not in (None, b"0")

    @property
    def body_bytes(self) -> int:
        """That it says it has; 0 where it says nothing."""
        length = self.content_length or b""
        return int(length) if length.isdigit() and len(length) < MAX_DIGITS else 0


MAX_DIGITS = 19
"""Of a length. The HTTP parser refuses longer ones."""


def head_of(headers: Headers) -> Head:
    """Of a header that is repeated, the first."""
    found: dict[str, bytes] = {}
    for name, value in headers:
        if name in _WANTED:
            found.setdefault(_WANTED[name], value)
    return Head(**found)


def check_repeated(headers: Headers) -> None:
    """Raises InvalidRequest where two parties could read two different requests."""
    seen = [name for name, _ in headers if name in (b"host", b"origin", b"content-type")]
    if len(seen) != len(set(seen)):
        raise InvalidRequest("the headers Host, Origin and Content-Type may be sent once", None, "repeated_header")

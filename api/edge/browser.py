"""What a web page may not do through its visitor's browser. Pure.

A page of another origin can send requests without asking first, as long as they look like a form's: it cannot read the
answer, but the request has been done. Such a request names its origin, and cannot have a body of type JSON.
"""

import re
from collections.abc import Collection

from cluster.errors import Forbidden, InvalidRequest, UnsupportedMediaType

_JSON = re.compile(rb"application/(?:[\w.!#$&^-]+\+)?json", re.ASCII | re.IGNORECASE)
_DEFAULT_PORTS = {b"http": b":80", b"https": b":443"}

ANY = "*"
SECURITY_HEADERS = [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]
"""Headers of every answer: browsers take it for what it says it is, and nobody keeps a copy of it."""


class OriginRule:
    def __init__(self, listed: Collection[str]) -> None:
        """`listed`: as browsers send them, or "*" for all."""
        self._listed = frozenset(origin.lower().encode() for origin in listed)
        self._any = ANY in listed

    def is_listed(self, origin: bytes) -> bool:
        return self._any or origin.lower() in self._listed

    def check(self, origin: bytes, host: bytes) -> None:
        """`host`: of the same request, and one that is served. Raises Forbidden."""
        if not _is_own(origin, host) and not self.is_listed(origin):
            raise Forbidden(
                "pages of this origin may not ask here: the operator can list it in ingress.cors_origins",
                None,
                "origin_not_allowed",
            )


def check_content_type(content_type: bytes | None) -> None:
    """Of a request with a body. Raises UnsupportedMediaType."""
    if content_type is None or not _JSON.fullmatch(content_type.partition(b";")[0].strip()):
        raise UnsupportedMediaType(
            "the request body must have the header 'Content-Type: application/json'", None, "unsupported_media_type"
        )


def check_upgrade(upgrade: bytes | None) -> None:
    """Raises InvalidRequest. Other protocols that a client offers, like h2c, are left aside, as HTTP has it."""
    if upgrade is not None and b"websocket" in upgrade.lower():
        raise InvalidRequest("WebSockets are not supported", None, "websocket_not_supported")


def _is_own(origin: bytes, host: bytes) -> bool:
    scheme, _, authority = origin.lower().partition(b"://")
    port = _DEFAULT_PORTS.get(scheme)
    return port is not None and authority.removesuffix(port) == host.lower().removesuffix(port)

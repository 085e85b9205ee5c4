"""Checks against web pages that send requests through the browsers of their visitors.

A page of a foreign origin can send a request without a preflight request if it looks like the request of an HTML form.
The page cannot read the answer, but the request takes effect. Such a request names its origin, and cannot have a body
of type JSON.
"""

import re
from collections.abc import Collection

from cluster.errors import Forbidden, InvalidRequest, UnsupportedMediaType

_JSON = re.compile(rb"application/(?:[\w.!#$&^-]+\+)?json", re.ASCII | re.IGNORECASE)
_DEFAULT_PORTS = {b"http": b":80", b"https": b":443"}

ANY = "*"
"""The entry of `cors_origins` that lists all origins."""
SECURITY_HEADERS = [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]
"""Headers of every answer. Browsers must not guess its type, and caches must not store it."""


class OriginRule:
    def __init__(self, listed: Collection[str]) -> None:
        """`listed` are origins as browsers send them, or "*" for all origins."""
        self._listed = frozenset(origin.lower().encode() for origin in listed)
        self._any = ANY in listed

    def is_listed(self, origin: bytes) -> bool:
        return self._any or origin.lower() in self._listed

    def check(self, origin: bytes, host: bytes) -> None:
        """Raises Forbidden for an origin that is neither listed nor the request's own. `host` is the Host of the
        request, which HostRule has allowed.
        """
        if not _is_own(origin, host) and not self.is_listed(origin):
            raise Forbidden(
                "pages of this origin may not send requests: the operator can list it in ingress.cors_origins, "
                "which holds for the public port alone",
                None,
                "origin_not_allowed",
            )


def check_content_type(content_type: bytes | None) -> None:
    """Checks the content type of a request that has a body. Raises UnsupportedMediaType."""
    if content_type is None or not _JSON.fullmatch(content_type.partition(b";")[0].strip()):
        raise UnsupportedMediaType(
            "the request body must have the header 'Content-Type: application/json'", None, "unsupported_media_type"
        )


def check_upgrade(upgrade: bytes | None) -> None:
    """Raises InvalidRequest for a WebSocket that the listener has not opened: on a path that has none, or with another
    method than GET. Further protocols that a client offers, like h2c, are ignored, as HTTP
    permits.
    """
    if upgrade is not None and b"websocket" in upgrade.lower():
        message = "there is no WebSocket at this URL: GET /v1/responses has one"
        raise InvalidRequest(message, None, "websocket_not_supported")


def _is_own(origin: bytes, host: bytes) -> bool:
    scheme, _, authority = origin.lower().partition(b"://")
    port = _DEFAULT_PORTS.get(scheme)
    return port is not None and authority.removesuffix(port) == host.lower().removesuffix(port)

"""The credential of a request: a bearer token, or none. Pure.

A credential of another form is refused. If it counted as no credential, a client whose proxy rewrites the header would
share the conversations of all clients that have no API key.
"""

import re

from cluster.errors import Unauthorized

MAX_CREDENTIAL_BYTES = 4096
"""Bytes of the Authorization header. OpenAI's keys have about 200 bytes, and signed tokens 1 to 3 KiB. Lower refuses
such tokens; higher lets every request carry more bytes to hash.
"""

_OTHER_HEADERS = (b"api-key", b"x-api-key")
"""Headers in which further services expect API keys. Baton refuses them, so that a key is never ignored."""

Headers = list[tuple[bytes, bytes]]
"""Headers as ASGI gives them: with names in lower case."""
_BEARER = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] +([\x21-\x7e]+) *")
"""A bearer token as in RFC 6750, except that the token may have all visible ASCII characters."""


def key_of(headers: Headers) -> str | None:
    """The key of a request, and None without a credential.

    Raises Unauthorized for a credential of another form, and for several credentials.
    """
    found = None
    for name, value in headers:
        if name in _OTHER_HEADERS:
            raise _refused(f"this service does not read the header {name.decode()}")
        if name == b"authorization":
            if found is not None:
                raise _refused("there are several Authorization headers")
            found = value
    return None if found is None else _key_in(found)


def _key_in(credential: bytes) -> str:
    if len(credential) > MAX_CREDENTIAL_BYTES:
        raise _refused(f"the Authorization header has more than {MAX_CREDENTIAL_BYTES} bytes")
    match = _BEARER.fullmatch(credential)
    if match is None:
        raise _refused("the Authorization header has no bearer token")
    return match[1].decode("ascii")


def _refused(why: str) -> Unauthorized:
    return Unauthorized(
        f"{why}: send the API key as 'Authorization: Bearer <key>', or no credential", None, "invalid_api_key"
    )

"""The credential of a request: a bearer token, or none. Pure.

Whatever else is sent is refused. Were it taken for no credential, a client whose proxy rewrites the header would share
the conversations of everybody who has no API key.
"""

import re

from cluster.errors import Unauthorized

MAX_CREDENTIAL_BYTES = 4096
"""Of a header. OpenAI's keys have some 200 bytes, signed tokens 1 to 3 KiB. Less refuses these; more lets every request
carry more to hash.
"""

_OTHER_HEADERS = (b"api-key", b"x-api-key")
"""What other services take their keys from."""

_BEARER = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] +([\x21-\x7e]+) *")
"""RFC 6750, with any visible ASCII character in the token."""


def key_of(headers: list[tuple[bytes, bytes]]) -> str | None:
    """The API key that is sent. `headers`: names in lower case. Raises Unauthorized."""
    found = None
    for name, value in headers:
        if name in _OTHER_HEADERS:
            raise _refused(f"the header {name.decode()} is not read here")
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

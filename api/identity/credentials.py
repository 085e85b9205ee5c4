"""The credential of a request: a bearer token, a key in the header `x-api-key`, or none. Pure.

A credential of another form is refused. If it counted as no credential, a client whose proxy rewrites the header would
share the conversations of all clients that have no API key.
"""

import re

from cluster.errors import Unauthorized

MAX_CREDENTIAL_BYTES = 4096
"""Bytes of the header of a credential. OpenAI's keys have about 200 bytes, and signed tokens 1 to 3 KiB. Lower refuses
such tokens; higher lets every request carry more bytes to hash.
"""

API_KEY_HEADER = b"x-api-key"
"""The header in which Anthropic's clients send the key by itself."""
_OTHER_HEADERS = (b"api-key", API_KEY_HEADER)
"""Headers in which further services expect API keys. Baton refuses those that it does not read, so that a key is never
ignored.
"""

Headers = list[tuple[bytes, bytes]]
"""Headers as ASGI gives them: with names in lower case."""
_FORMS = {
    b"authorization": (re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] +([\x21-\x7e]+) *"), "bearer token"),
    API_KEY_HEADER: (re.compile(rb"([\x21-\x7e]+) *"), "key"),
}
"""What each header may have, and what that is called. A bearer token is as in RFC 6750, except that the token may have
all visible ASCII characters.
"""
_NAMES = {b"authorization": "Authorization", API_KEY_HEADER: "x-api-key"}


def key_of(headers: Headers, *, reads_api_key_header: bool = False) -> str | None:
    """The key of a request, and None without a credential. `reads_api_key_header`: whether the key may also be in the
    header `x-api-key`.

    Raises Unauthorized for a credential of another form, and for several credentials.
    """
    found: tuple[bytes, bytes] | None = None
    for name, value in headers:
        if name in _OTHER_HEADERS and not (name == API_KEY_HEADER and reads_api_key_header):
            raise _refused(f"this service does not read the header {name.decode()}")
        if name in _FORMS:
            if found is not None:
                several = sorted({_NAMES[found[0]], _NAMES[name]})
                raise _refused(f"there are several {' and '.join(several)} headers")
            found = name, value
    return None if found is None else _key_in(*found)


def _key_in(name: bytes, credential: bytes) -> str:
    if len(credential) > MAX_CREDENTIAL_BYTES:
        raise _refused(f"the {_NAMES[name]} header has more than {MAX_CREDENTIAL_BYTES} bytes")
    form, what = _FORMS[name]
    match = form.fullmatch(credential)
    if match is None:
        raise _refused(f"the {_NAMES[name]} header has no {what}")
    return match[1].decode("ascii")


def _refused(why: str) -> Unauthorized:
    return Unauthorized(
        f"{why}: send the API key as 'Authorization: Bearer <key>', or no credential", None, "invalid_api_key"
    )

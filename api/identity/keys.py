"""API keys: how they are made and checked, and what is stored of them. Pure.

The text of a key is `sk-baton-`, 8 characters that are its public handle, `-`, 40 characters that are its secret, and 6
characters that are the CRC-32 of all before. So a key that was mistyped, or cut, is refused without a look at the
accounts.

The secret has 238 random bits. So the SHA-256 of the text is all that is stored: nobody can guess a text to compare
with it, with or without a salt.
"""

import hashlib
import re
import zlib
from typing import NamedTuple

from cluster.errors import Unauthorized

PREFIX = "sk-baton-"
ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
HANDLE_CHARS, SECRET_CHARS, CHECK_CHARS = 8, 40, 6
"""Characters of the parts of a key. A shorter handle lets more keys share one; a shorter secret can be guessed. Six
characters hold all values of the CRC.
"""
RANDOM_BYTES = 48
"""Least random bytes that a key is made of. The handle and the secret have 286 bits together; with 98 bits more, no
character is more likely than another one. Fewer bytes would prefer some keys; more are not needed.
"""
SHOWN_CHARS = 4
"""Last characters of a text that an error may show. More reveals more of a secret that stands in a log; fewer lets a
reader tell fewer keys apart.
"""
_LEAST_SECRET_CHARS = 20
"""Characters that a text must have for its last ones to be shown: those of a shorter text could be most of it."""
_FORM = re.compile(
    rf"{PREFIX}([0-9A-Za-z]{{{HANDLE_CHARS}}})-[0-9A-Za-z]{{{SECRET_CHARS}}}([0-9A-Za-z]{{{CHECK_CHARS}}})"
)


class NewKey(NamedTuple):
    """A key that was just made. Its text is shown once, and stored nowhere."""

    text: str
    handle: str
    digest: bytes


def new_key(random: bytes) -> NewKey:
    """Make a key of random bytes. Raises ValueError if there are fewer than RANDOM_BYTES."""
    if len(random) < RANDOM_BYTES:
        raise ValueError(f"a key is made of at least {RANDOM_BYTES} random bytes, not of {len(random)}")
    drawn = _base62(int.from_bytes(random), HANDLE_CHARS + SECRET_CHARS)
    handle, secret = drawn[:HANDLE_CHARS], drawn[HANDLE_CHARS:]
    body = f"{PREFIX}{handle}-{secret}"
    text = body + _check_chars(body)
    return NewKey(text, handle, digest(text))


def digest(text: str) -> bytes:
    """What is stored of a key, and found by."""
    return hashlib.sha256(text.encode()).digest()


def handle_in(text: str) -> str:
    """The handle of a key that a client has sent. Raises Unauthorized if the text cannot be a key."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise invalid_key(f"the API key{_hint(text)} does not have the form of a key of this service, {PREFIX}…")
    if found[2] != _check_chars(text[:-CHECK_CHARS]):
        raise invalid_key(f"{shown(found[1])} has a wrong character, or lacks one: copy it again")
    return found[1]


def shown(handle: str) -> str:
    """How errors and lists name a key."""
    return f"the API key {PREFIX}{handle}-…"


def invalid_key(why: str) -> Unauthorized:
    return Unauthorized(why, None, "invalid_api_key")


def _hint(text: str) -> str:
    return f" that ends with {text[-SHOWN_CHARS:]!r}" if len(text) >= _LEAST_SECRET_CHARS else ""


def _check_chars(body: str) -> str:
    return _base62(zlib.crc32(body.encode()), CHECK_CHARS)


def _base62(number: int, length: int) -> str:
    """The last digits of a number to the base 62."""
    digits = []
    for _ in range(length):
        number, digit = divmod(number, len(ALPHABET))
        digits.append(ALPHABET[digit])
    return "".join(reversed(digits))

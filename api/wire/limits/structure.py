"""How much JSON there is in a text, known before it is decoded. Pure.

Three bytes of JSON, an empty list and a comma, become sixty in memory, and what decodes them holds the interpreter
until it is done. So values are counted by the bytes that begin or separate them. Such bytes inside of strings count
only until there are too many: then the text is looked at more closely.
"""

import re
from typing import NamedTuple

from cluster.errors import InvalidRequest

MAX_CONTAINERS = 1 << 16
"""Lists and objects. 10,000 items of a conversation have 30,000. Decoding so many takes 9 ms, and 64 of them less than
one; twice as many take twice as long.
"""
MAX_MEMBERS = 1 << 16
"""Of all objects together. 10,000 items of a conversation have 50,000. Decoding so many takes 7 ms, validating them as
fields that vLLM does not know 40 ms.
"""
MAX_VALUES = 1 << 20
"""Of all lists and objects together. The token ids of the longest prompts. Decoding so many takes up to 35 ms."""
MAX_DIGITS_IN_A_ROW = 64
"""Outside of strings. Reading a number takes time that grows with the square of its length: 72 µs for 4,300 digits."""

SLICE_BYTES = 256 << 10
"""Of a text that is looked at closely, at a time: half a millisecond."""
MANY_DIGITS = 1 << 18
"""Fewer take no time to read in whatever numbers they are."""

_DIGITS = b"0123456789"
_NOT_NESTING = bytes(byte for byte in range(256) if byte not in b"[]{}")
_LONG_NUMBER = re.compile(rb"[0-9]{%d}" % (MAX_DIGITS_IN_A_ROW + 1))


class Counts(NamedTuple):
    containers: int
    members: int
    values: int

    @property
    def are_too_many(self) -> bool:
        return self.containers > MAX_CONTAINERS or self.members > MAX_MEMBERS or self.values > MAX_VALUES


def check_structure(text: bytes, slice_bytes: int = SLICE_BYTES) -> Counts:
    """No more than so much is in the text. Raises InvalidRequest where it is more than is decoded."""
    counts = _counts(text)
    if counts.are_too_many or _may_have_long_numbers(text):
        outside = _outside_strings(text, slice_bytes)
        counts = Counts(*map(sum, zip(*map(_counts, outside), strict=True)))
        if counts.are_too_many:
            raise InvalidRequest(
                f"the request body has more than {MAX_VALUES} values, {MAX_MEMBERS} members of objects, or "
                f"{MAX_CONTAINERS} lists and objects",
                None,
                "request_too_large",
            )
        if any(_LONG_NUMBER.search(piece) for piece in outside):
            raise InvalidRequest(
                f"a number in the request body has more than {MAX_DIGITS_IN_A_ROW} digits", None, "invalid_json"
            )
    return counts


def _counts(text: bytes) -> Counts:
    containers = text.count(b"[") + text.count(b"{")
    return Counts(containers, text.count(b":"), text.count(b",") + containers)


def _may_have_long_numbers(text: bytes) -> bool:
    return len(text) > MANY_DIGITS and len(text) - len(text.translate(None, _DIGITS)) > MANY_DIGITS


def _outside_strings(text: bytes, slice_bytes: int) -> list[bytes]:
    """What is not in a string, up to the first error in the text: behind it nothing is decoded."""
    found, is_inside, held_back = [], False, b""
    for start in range(0, len(text), slice_bytes):
        piece = held_back + text[start : start + slice_bytes]
        num_backslashes = len(piece) - len(piece.rstrip(b"\\"))
        held_back = b"\\" if num_backslashes % 2 else b""  # what it escapes comes with the next slice
        piece = piece.removesuffix(held_back) if held_back else piece
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        found.append(b"".join(parts[is_inside::2]))
        is_inside ^= len(parts) % 2 == 0
    return found


def nesting_of(text: bytes) -> int:
    """How deeply lists and objects are nested, up to the first error in the text."""
    deepest = depth = 0
    for piece in _outside_strings(text, SLICE_BYTES):
        for byte in piece.translate(None, _NOT_NESTING):
            depth += 1 if byte in b"[{" else -1
            deepest = max(deepest, depth)
    return deepest

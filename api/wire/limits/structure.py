"""The number of JSON values in a text, counted before the text is decoded.

Three bytes of JSON, an empty list and a comma, take sixty bytes in memory, and the decoder holds the interpreter lock
until it has finished. So values are counted by the bytes that begin or separate them. The first count includes such
bytes inside of strings. Only if that count exceeds a bound, or if the text has many digits, the strings are
left out and the values are counted again.
"""

import re
from typing import NamedTuple

from cluster.errors import InvalidRequest

MAX_CONTAINERS = 1 << 16
"""Lists and objects of a text together. 10,000 items of a conversation have 30,000. Decoding 65,536 takes 9 ms. Higher
holds up the event loop for longer in proportion; lower refuses long conversations.
"""
MAX_MEMBERS = 1 << 16
"""Members of all objects of a text together. 10,000 items of a conversation have 50,000. Decoding 65,536 takes 7 ms,
and validating them as fields that vLLM does not know takes 40 ms. Higher holds up the event loop for longer; lower
refuses long conversations.
"""
MAX_VALUES = 1 << 20
"""Values in all lists and objects of a text together. The longest prompts of token ids have this many. Decoding them
takes up to 35 ms. Higher takes longer; lower refuses long prompts of token ids.
"""
MAX_DIGITS_IN_A_ROW = 64
"""Digits of a number outside of strings. The time to read a number grows with the square of its length: 4,300 digits
take 72 µs. Higher takes longer; lower refuses long numbers.
"""

SLICE_BYTES = 256 << 10
"""Bytes of a text from which strings are removed in one step, which takes 0.5 ms. Longer steps hold up the event loop
for longer; shorter steps take more time together.
"""
MANY_DIGITS = 1 << 18
"""Digits of a text from which on long numbers are searched for. Fewer digits take little time to read, whatever the
numbers that they form. Lower searches more texts; higher lets longer numbers pass.
"""

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
    """Upper bounds of the values in a JSON text. Raises InvalidRequest if the text has more values than may be decoded,
    or a number with too many digits.
    """
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
    """The parts of a JSON text that are not in strings. Behind the first error in the text they may be wrong, but
    nothing behind that error is decoded.
    """
    found, is_inside, held_back = [], False, b""
    for start in range(0, len(text), slice_bytes):
        piece = held_back + text[start : start + slice_bytes]
        num_backslashes = len(piece) - len(piece.rstrip(b"\\"))
        held_back = b"\\" if num_backslashes % 2 else b""  # the character that it escapes is in the next slice
        piece = piece.removesuffix(held_back) if held_back else piece
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        found.append(b"".join(parts[is_inside::2]))
        is_inside ^= len(parts) % 2 == 0
    return found


def nesting_of(text: bytes) -> int:
    """Levels of lists and objects in a JSON text. Behind the first error in the text the count may be wrong."""
    deepest = depth = 0
    for piece in _outside_strings(text, SLICE_BYTES):
        for byte in piece.translate(None, _NOT_NESTING):
            depth += 1 if byte in b"[{" else -1
            deepest = max(deepest, depth)
    return deepest

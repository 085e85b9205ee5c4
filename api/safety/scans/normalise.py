"""One form for texts that look alike: what lists and patterns are compared with. Pure.

A *canonical* text has lower-case letters without marks, ASCII letters in place of letters that look like them, one
blank for any white space, and nothing that is not seen. Each canonical character knows which part of the text it stands
for, so that what is found in the canonical text can be cut from the text itself.
"""

import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

ESCAPE_LENGTH = 6
"""Characters of an escape of a code point: a backslash, `u` and four hexadecimal digits."""
LONGEST_ESCAPE = 2 * ESCAPE_LENGTH
"""Characters of the escape of a code point beyond U+FFFF, which is a pair of surrogates."""
_SHORT_ESCAPES = {**dict.fromkeys("nrtbf", " "), **{character: character for character in '"\\/'}}
"""What follows a backslash in a string of JSON, as the character that it stands for. Elsewhere a backslash is one."""
_JSON_BEGINS = frozenset("{[")
"""A quotation mark after one of them, with or without white space, is taken for the beginning of JSON."""
_HIGH, _LOW = range(0xD800, 0xDC00), range(0xDC00, 0xE000)
"""Surrogates."""
_HEX = frozenset("0123456789abcdefABCDEF")
_TAGS = range(0xE0020, 0xE007F)
"""Invisible copies of ASCII, which some models read."""
_UNSEEN = frozenset(("Cf", "Mn", "Me", "Cc", "Cn", "Co", "Cs"))
"""Categories of characters that add nothing to what is seen: formats, marks, controls, and what is not assigned."""
_LOOKS_LIKE = {
    **dict(zip("аеорсухіјѕԁһӏոցզԛԝꮃ", "aeopcyxijsdhlngzqww", strict=True)),
    **dict(zip("αβεηικνορτυχγ", "abenikvoptuxy", strict=True)),
    **dict(zip("ɑɡıɩʟⅼ∣ǀøđħłŧœ", "agiillllodhlto", strict=True)),
    **dict(zip("ᴀʙᴄᴅᴇɢʜɪᴊᴋᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢьƅ", "abcdeghijkmnoprstuvwyzbb", strict=True)),
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-"),
    **dict.fromkeys("\u2018\u2019\u02bc", "'"),
    **{chr(first + number): chr(97 + number) for first in (0x1F150, 0x1F170) for number in range(26)},
}
"""Letters of other scripts, of phonetic alphabets and in circles as the ASCII letters that they look like; dashes;
apostrophes.
"""
_FILLERS = frozenset("\u115f\u1160\u3164\uffa0")
"""Letters of Hangul that are blank."""


class Canonical(NamedTuple):
    """A part of a canonical text."""

    text: str
    offsets: Sequence[int]
    """Where each character begins in the whole text, in characters; as long as `text`."""
    ends: Sequence[int]
    """Where it ends: an escape is longer than a character."""


class _Table(dict[str, str]):
    """The canonical form of each character, computed when it is first seen."""

    def __missing__(self, character: str) -> str:
        form = _form(character)
        if len(self) < _MOST_KEPT:
            self[character] = form
        return form


_MOST_KEPT = 20_000
"""Characters whose form is kept. Fewer computes rare ones again; more lets one client fill memory."""


def _form(character: str) -> str:
    if ord(character) in _TAGS:
        return chr(ord(character) - 0xE0000).lower()
    if character.isspace():
        return " "
    if character in _FILLERS:
        return ""
    seen = (c for c in unicodedata.normalize("NFKD", character) if unicodedata.category(c) not in _UNSEEN)
    folded = unicodedata.normalize("NFKD", "".join(seen).casefold())
    return "".join(
        " " if c.isspace() else _LOOKS_LIKE.get(c, c) for c in folded if unicodedata.category(c) not in _UNSEEN
    )


_FORMS = _Table()


class Normaliser:
    """The canonical form of one text that comes in parts. How it is cut into parts changes nothing."""

    def __init__(self, is_json: bool = False) -> None:
        """`is_json`: whether the text is a part of JSON."""
        self._num_read = 0
        """Characters of the text so far, those of `_escape` included."""
        self._escape = ""
        """The beginning of what may be an escape."""
        self._is_json = is_json
        """Whether JSON has begun, whose strings have escapes."""
        self._last = ""
        """The last character that is no white space."""

    @property
    def open_from(self) -> int:
        """Where the characters begin whose form is not known yet; the end of the text so far if there are none."""
        return self._num_read - len(self._escape)

    def feed(self, part: str) -> Canonical:
        """The form of what is known with this part."""
        if not self._escape and "\\" not in part:
            return self._plain(part)
        begin = self.open_from
        self._num_read += len(part)
        text, self._escape = self._escape + part, ""
        forms: list[str] = []
        offsets: list[int] = []
        ends: list[int] = []
        position = 0
        while position < len(text):
            character, length = text[position], 1
            if character == "\\":
                known = escape_in(text[position : position + LONGEST_ESCAPE], self._is_json)
                if known is None:
                    self._escape = text[position:]
                    break
                if known.length:
                    character, length = known
            else:
                self._look_for_json(character)
            form = _FORMS[character]
            forms.append(form)
            offsets.extend([begin + position] * len(form))
            position += length
            ends.extend([begin + position] * len(form))
        return Canonical("".join(forms), offsets, ends)

    def finish(self) -> Canonical:
        """The form of what was open, at the end of the text."""
        begin, rest, self._escape = self.open_from, self._escape, ""
        return _form_of(rest, begin)

    def _look_for_json(self, character: str) -> None:
        if character == '"' and self._last in _JSON_BEGINS:
            self._is_json = True
        if not character.isspace():
            self._last = character

    def _plain(self, part: str) -> Canonical:
        begin = self._num_read
        self._num_read += len(part)
        if '"' in part and not self._is_json:
            for character in part:
                self._look_for_json(character)
        else:
            self._last = part.rstrip()[-1:] or self._last
        if part.isascii() and part.isprintable():
            end = begin + len(part)
            return Canonical(part.lower(), range(begin, end), range(begin + 1, end + 1))
        return _form_of(part, begin)


def _form_of(part: str, begin: int) -> Canonical:
    """The form of a part of a text without escapes that begins with character `begin` of the text."""
    forms = [_FORMS[character] for character in part]
    offsets = [begin + index for index, form in enumerate(forms) for _ in form]
    return Canonical("".join(forms), offsets, [offset + 1 for offset in offsets])


class Escape(NamedTuple):
    character: str
    length: int
    """Characters that stand for it. 0 if they do not."""


_NO_ESCAPE = Escape("", 0)


def escape_in(text: str, is_json: bool) -> Escape | None:
    """The escape that a text begins with; None if more text may make it one. `text`: at most LONGEST_ESCAPE characters,
    the first of which is a backslash. `is_json`: whether the short escapes of JSON count.
    """
    if len(text) == 1:
        return None
    if text[1] != "u":
        short = _SHORT_ESCAPES.get(text[1]) if is_json else None
        return _NO_ESCAPE if short is None else Escape(short, 2)
    if not _HEX.issuperset(text[2:ESCAPE_LENGTH]):
        return _NO_ESCAPE
    if len(text) < ESCAPE_LENGTH:
        return None
    code, rest = int(text[2:ESCAPE_LENGTH], 16), text[ESCAPE_LENGTH:]
    if code not in _HIGH or not ("\\u".startswith(rest[:2]) and _HEX.issuperset(rest[2:])):
        return Escape(chr(code), ESCAPE_LENGTH)
    if len(text) < LONGEST_ESCAPE:
        return None
    low = int(rest[2:], 16)
    if low not in _LOW:
        return Escape(chr(code), ESCAPE_LENGTH)
    return Escape(chr(0x10000 + (code - _HIGH.start) * 0x400 + low - _LOW.start), LONGEST_ESCAPE)


def canonical(text: str) -> str:
    """The canonical form of a whole text."""
    normaliser = Normaliser()
    return normaliser.feed(text).text + normaliser.finish().text

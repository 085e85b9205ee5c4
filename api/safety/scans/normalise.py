"""One form for texts that look alike: what lists and patterns are compared with. Pure.

A *canonical* text has lower-case letters without marks, ASCII letters in place of letters that look like them, one
blank for any white space, and nothing that is not seen. Each canonical character knows where in the text it comes from,
so that what is found in the canonical text can be cut from the text itself.
"""

import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

ESCAPE_LENGTH = 6
"""Characters of an escape of JSON, as in tool arguments: a backslash, `u` and four hexadecimal digits."""
_HEX = frozenset("0123456789abcdefABCDEF")
_TAGS = range(0xE0020, 0xE007F)
"""Invisible copies of ASCII, which some models read."""
_UNSEEN = frozenset(("Cf", "Mn", "Me", "Cc", "Cn", "Co", "Cs"))
"""Categories of characters that add nothing to what is seen: formats, marks, controls, and what is not assigned."""
_LOOKS_LIKE = {
    **dict(zip("аеорсухіјѕԁһӏոցզԛԝꮃ", "aeopcyxijsdhlngzqww", strict=True)),
    **dict(zip("αβεηικνορτυχγ", "abenikvoptuxy", strict=True)),
    **dict(zip("ɑɡıɩʟⅼ∣ǀøđħłŧœ", "agiillllodhlto", strict=True)),
}
"""Letters of other scripts, and of phonetic alphabets, as the ASCII letters that they look like."""


class Canonical(NamedTuple):
    """A part of a canonical text."""

    text: str
    offsets: Sequence[int]
    """Where each character begins in the whole text, in characters; as long as `text`."""


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
    seen = (c for c in unicodedata.normalize("NFKD", character) if unicodedata.category(c) not in _UNSEEN)
    folded = unicodedata.normalize("NFKD", "".join(seen).casefold())
    return "".join(
        " " if c.isspace() else _LOOKS_LIKE.get(c, c) for c in folded if unicodedata.category(c) not in _UNSEEN
    )


_FORMS = _Table()


class Normaliser:
    """The canonical form of one text that comes in parts. How it is cut into parts changes nothing."""

    def __init__(self) -> None:
        self._num_read = 0
        """Characters of the text so far, those of `_escape` included."""
        self._escape = ""
        """The beginning of what may be an escape."""

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
        position = 0
        while position < len(text):
            character, length = text[position], 1
            if character == "\\":
                known = escape_in(text[position : position + ESCAPE_LENGTH])
                if known is None:
                    self._escape = text[position:]
                    break
                if known:
                    character, length = known, ESCAPE_LENGTH
            form = _FORMS[character]
            forms.append(form)
            offsets.extend([begin + position] * len(form))
            position += length
        return Canonical("".join(forms), offsets)

    def finish(self) -> Canonical:
        """The form of what was open, at the end of the text."""
        begin, rest, self._escape = self.open_from, self._escape, ""
        forms = [_FORMS[character] for character in rest]
        offsets = [begin + index for index, form in enumerate(forms) for _ in form]
        return Canonical("".join(forms), offsets)

    def _plain(self, part: str) -> Canonical:
        begin = self._num_read
        self._num_read += len(part)
        if part.isascii() and part.isprintable():
            return Canonical(part.lower(), range(begin, begin + len(part)))
        forms = [_FORMS[character] for character in part]
        offsets = [begin + index for index, form in enumerate(forms) for _ in form]
        return Canonical("".join(forms), offsets)


def escape_in(text: str) -> str | None:
    """The character of the escape that a text begins with; "" if it begins with none, and None if more text may make it
    one. `text`: at most ESCAPE_LENGTH characters, the first of which is a backslash.
    """
    if text[1:2] not in ("", "u") or not _HEX.issuperset(text[2:]):
        return ""
    if len(text) < ESCAPE_LENGTH:
        return None
    return chr(int(text[2:], 16))


def canonical(text: str) -> str:
    """The canonical form of a whole text."""
    normaliser = Normaliser()
    return normaliser.feed(text).text + normaliser.finish().text

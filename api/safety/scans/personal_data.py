"""Personal data in texts: what looks like it, and whether it is. Pure.

A kind has an expression of what may be such data, and a check that finds it in there: by a checksum where there is one
(python-stdnum), or by the numbering plans of all countries (phonenumbers). Kinds with stronger checks come first: where
two kinds overlap, the first one names the mask.
"""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import phonenumbers
from stdnum import iban, luhn
from stdnum.us import ssn

from api.safety.scans.normalise import Normaliser
from api.safety.scans.patterns import Pattern

Span = tuple[int, int]
_Check = Callable[[str], Iterator[Span]]

CARD_DIGITS = range(13, 20)
"""Digits that a payment card may have."""
_CARD_BEGINS = "23456"
"""First digits of the payment networks. Luhn's checksum alone takes every tenth number for a card."""
IBAN_LENGTHS = range(15, 35)
"""Characters that an IBAN may have, without blanks."""
_TOKENS = ("sk-", "ghp_", "gho_", "github_pat_", "xoxb-", "xoxp-", "akia", "asia", "aiza", "glpat-", "hf_")
"""What secrets of well-known services begin with, in lower case."""


class Kind(NamedTuple):
    """A kind of personal data."""

    name: str
    expression: str
    """Of what may be such data."""
    check: _Check
    """The spans of such data in what the expression matches."""

    @property
    def mask(self) -> str:
        return f"[{self.name.upper()}]"


def _all(text: str) -> Iterator[Span]:
    yield 0, len(text)


def _cards(text: str) -> Iterator[Span]:
    yield from _numbers(text, CARD_DIGITS, lambda digits: digits[0] in _CARD_BEGINS and luhn.is_valid(digits))


def _ssns(text: str) -> Iterator[Span]:
    if ssn.is_valid(text.replace(" ", "-")):
        yield 0, len(text)


def _ibans(text: str) -> Iterator[Span]:
    """An IBAN may have further words before and after it."""
    begin = 0
    while begin < len(text):
        end = _end_of_iban(text, begin) if _begins_iban(text, begin) else None
        if end is None:
            begin += 1
        else:
            yield begin, end
            begin = end


def _begins_iban(text: str, begin: int) -> bool:
    is_edge = begin == 0 or not text[begin - 1].isalnum()
    return is_edge and text[begin : begin + 2].isalpha() and text[begin + 2 : begin + 4].isdecimal()


def _end_of_iban(text: str, begin: int) -> int | None:
    """The end of the longest IBAN that begins there."""
    longest = min(len(text), begin + 2 * IBAN_LENGTHS.stop)
    for end in range(longest, begin, -1):
        is_end = text[end - 1].isalnum() and not text[end : end + 1].isalnum()
        bare = text[begin:end].replace(" ", "").replace("-", "") if is_end else ""
        if len(bare) in IBAN_LENGTHS and iban.is_valid(bare):
            return end
    return None


def _phones(text: str) -> Iterator[Span]:
    """Numbers with a country's code, or as they are written in North America."""
    for match in phonenumbers.PhoneNumberMatcher(text, None if text.lstrip("( ").startswith("+") else "US"):
        yield match.start, match.end


def _numbers(text: str, lengths: range, is_valid: Callable[[str], bool]) -> Iterator[Span]:
    """The numbers of groups of digits, the first and the longest ones of those that overlap."""
    groups = [match.span() for match in re.finditer(r"\d+", text)]
    digits = [text[begin:end] for begin, end in groups]
    first = 0
    while first < len(groups):
        last = _last_group(digits, first, lengths, is_valid)
        if last is not None:
            yield groups[first][0], groups[last][1]
            first = last
        first += 1


def _last_group(digits: list[str], first: int, lengths: range, is_valid: Callable[[str], bool]) -> int | None:
    """The last group of the longest number that begins with a group; None if none does."""
    number, found = "", None
    for last in range(first, len(digits)):
        number += digits[last]
        if len(number) >= lengths.stop:
            break
        if len(number) in lengths and is_valid(number):
            found = last
    return found


KINDS = (
    Kind("iban", r"[a-z]{2}\d{2}([ -]?[a-z0-9]){11,}", _ibans),
    Kind("card", r"\d([ _-]{0,2}\d){12,}", _cards),
    Kind("ssn", r"\d{3}[- ]\d{2}[- ]\d{4}", _ssns),
    Kind("email", r"[a-z0-9._%+-]+@[a-z0-9-]+(\.[a-z0-9-]+)+", _all),
    Kind("secret", rf"({'|'.join(token.replace('.', '[.]') for token in _TOKENS)})[a-z0-9_-]{{16,}}", _all),
    Kind("phone", r"(\+ ?)?\(?\d([ ./()-]{0,2}\d){6,}", _phones),
    Kind("ip", r"(25[0-5]|2[0-4]\d|1?\d?\d)(\.(25[0-5]|2[0-4]\d|1?\d?\d)){3}", _all),
)
"""In the order of the strength of their checks."""


def patterns_of(kinds: tuple[Kind, ...]) -> list[Pattern]:
    """The patterns of kinds, each with the place of its kind as label."""
    return [Pattern(kind.expression, label) for label, kind in enumerate(kinds)]


def spans_in(kind: Kind, text: str) -> list[Span]:
    """The personal data of a kind in a part of a text that its expression matches: begin and end in this part."""
    normaliser = Normaliser(is_json=True)  # no expression matches a backslash: one that is here begins an escape
    known, rest = normaliser.feed(text), normaliser.finish()
    form, offsets, ends = known.text + rest.text, [*known.offsets, *rest.offsets], [*known.ends, *rest.ends]
    return [(offsets[begin], ends[end - 1]) for begin, end in kind.check(form)]

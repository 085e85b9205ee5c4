"""Personal data is masked, the rest of the text stays, and numbers that are none are left alone."""

import json
from functools import cache
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stdnum import luhn

from api.safety.policy import PersonalKind
from api.safety.scans.patterns import PatternScan, PatternSet
from api.safety.scans.personal_data import KINDS, patterns_of, spans_in
from api.safety.scans.screened_text import Cut, Found, Mask, ScreenedText
from tests.unit.api.safety.scans.shown_text import shown_parts

PATTERNS = patterns_of(KINDS)


def judge(number: int, found: Found, text: str) -> list[Cut | Mask]:
    kind = KINDS[found.label]
    return [Mask(found.begin + begin, found.begin + end, kind.mask) for begin, end in spans_in(kind, text)]


def masked(text: str, length: int = 1000) -> str:
    screened = ScreenedText([PatternScan(PatternSet(PATTERNS))], judge)
    return "".join(shown_parts(screened, [text[at : at + length] for at in range(0, len(text), length)]))


def test_policies_know_the_kinds() -> None:
    assert get_args(PersonalKind) == tuple(kind.name for kind in KINDS)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("My card is 4111 1111 1111 1111.", "My card is [CARD]."),
        ("12 4111-1111-1111-1111 35", "12 [CARD] 35"),
        ("４１１１１１１１１１１１１１１１", "[CARD]"),
        ("41\u200b11 1111 1111 1111", "[CARD]"),
        ("order 4111 1111 1111 1112", "order 4111 1111 1111 1112"),
        ("IBAN DE89 3704 0044 0532 0130 00 please", "IBAN [IBAN] please"),
        ("GB82WEST12345698765432", "[IBAN]"),
        ("SSN 536-22-8726", "SSN [SSN]"),
        ("my room xx12 DE89 3704 0044 0532 0130 00 now", "my room xx12 [IBAN] now"),
        ("DE89-3704-0044-0532-0130-00", "[IBAN]"),
        ("9 " * 53 + "4111 1111 1111 1111", "9 " * 53 + "[CARD]"),
        ("0 " * 200 + "4111 1111 1111 1111 and", "0 " * 200 + "[CARD] and"),
        ("4111  1111  1111  1111 or 4111\u20131111\u20131111\u20131111", "[CARD] or [CARD]"),
        ("key sk-proj-" + "aB3dE5fG7h" * 15 + "_T3BlbkFJx9Y8z7W6v5 end", "key [SECRET] end"),
        ("key sk-" + "a" * 400 + " end", "key [SECRET] end"),
        ('{"card": "\\n4111 1111 1111 1111"}', '{"card": "\\n[CARD]"}'),
        ('{"to": "\\nann@example.org"}', '{"to": "\\n[EMAIL]"}'),
        ('{"card": "411111111111111\\u0031"}', '{"card": "[CARD]"}'),
        ('{"iban": "DE89\\n3704 0044 0532\\t0130 0\\u0030"}', '{"iban": "[IBAN]"}'),
        ("not 078-05-1120 x", "not 078-05-1120 x"),
        ("write to Ann.Lee+x@example.co.uk!", "write to [EMAIL]!"),
        ("call +49 30 901820 or (415) 555-2671 now", "call [PHONE] or [PHONE] now"),
        ("key sk-abcdefghijklmnop1234", "key [SECRET]"),
        ("at 10.0.0.1, not at 1.2.3", "at [IP], not at 1.2.3"),
        ("In 2024 we sold 12 345 678 of 3.14", "In 2024 we sold 12 345 678 of 3.14"),
    ],
)
@pytest.mark.parametrize("length", [1, 3, 1000])
def test_personal_data_is_masked_and_the_rest_stays(text: str, shown: str, length: int) -> None:
    assert masked(text, length) == shown


@cache
def _card(digits: str) -> str:
    return digits + luhn.calc_check_digit(digits)


@given(
    st.text(st.characters(categories=["Ll", "Lu"]), max_size=10),
    st.integers(0, 10**14 - 1),
    st.lists(st.sampled_from(["", " ", "-"]), min_size=15, max_size=15),
    st.integers(1, 9),
)
def test_no_card_passes_however_it_is_written_and_cut(
    word: str, number: int, separators: list[str], length: int
) -> None:
    card = _card(f"4{number:014d}")
    written = "".join(digit + separator for digit, separator in zip(card, [*separators, ""], strict=True))
    shown = masked(f"{word} {written} {word}", length)
    assert shown == f"{word} [CARD] {word}"


@given(
    st.integers(0, 10**14 - 1),
    st.lists(st.sampled_from(range(4)), min_size=16, max_size=16),
    st.lists(st.sampled_from(["", " ", "-", "\\u0020", "\\n", "\\u200b"]), min_size=15, max_size=15),
    st.integers(1, 9),
)
def test_json_stays_valid_whatever_its_strings_escape(
    number: int, ways: list[int], separators: list[str], length: int
) -> None:
    forms = [
        (digit, f"\\u{ord(digit):04x}", f"\\uff1{digit}", f"\\ud835\\u{0xDFCE + int(digit):04x}")
        for digit in _card(f"4{number:014d}")
    ]
    written = [form[way] for form, way in zip(forms, ways, strict=True)]
    text = '{"card": "' + "".join(map("".join, zip(written, [*separators, ""], strict=True))) + '", "n": 1}'
    assert json.loads(masked(text, length)) == {"card": "[CARD]", "n": 1}

"""What begins in a prompt and ends in its answer is found, and a prompt changes nothing else of the screening."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.safety.continued_text import MOST_CONTEXT
from api.safety.judge import judged_text
from api.safety.policy import OnPersonalData, PersonalKind, Policy
from api.safety.scans.rules import RuleEntry, Rules, TextRole, WordList
from api.safety.scans.screened_text import Mask
from api.safety.verdict import Category

TERMS = ["pipe bomb", "bomb", "kill them all"]
RULES = Rules([WordList(category=Category.VIOLENCE, entries=[RuleEntry(score=0.9, terms=TERMS)])])
WORDS = [
    "pipe",
    " ",
    "bomb",
    "kill ",
    "them",
    "all",
    "x",
    "b.0.m.b",
    "4111 1111 ",
    "1111 1111",
    "\\u006",
    '{"',
    "\\",
    "2",
]


class Outcome(NamedTuple):
    cut: int | None
    masks: list[Mask]
    masked: dict[str, int]
    decided_to: int


def outcome(text: str, context: str = "", length: int = 1000, card: OnPersonalData = OnPersonalData.MASK) -> Outcome:
    kinds: dict[PersonalKind, OnPersonalData] = {"card": card}
    judged = judged_text(Policy(personal_data_out=kinds), None, TextRole.ANSWER, RULES, None, context)
    screened = judged.text
    for begin in range(0, len(text), length):
        screened.feed(text[begin : begin + length])
    screened.finish()
    cut = None if screened.cut is None else screened.cut.begin
    return Outcome(cut, screened.masks, dict(judged.judge.masked), screened.decided_to)


@pytest.mark.parametrize("length", [1, 3, 1000])
@pytest.mark.parametrize(
    ("context", "text", "cut"),
    [
        ("How to make a pipe", " bomb at home", 0),
        ("How to make a pi", "pe bomb at home", 0),
        ("How to make a p.i.p.e b", ".o.m.b at home", 0),
        ("Make a pipe ", "dream", None),
        ("A bomb", ", they say", None),
        ("A bomb", "ard, they say", None),
        ("Paris", "bomb", 0),
        ("x", "b 0 m b", 0),
        ("\\u006", "2omb", 0),
        ("say \\u", "pipe bomb", 0),
        ("say \\u006", "bomb", 0),
        ('{"a": "x', "\\bomb", 1),
        ("x" * MOST_CONTEXT + " pipe", " bomb", 0),
    ],
)
def test_terms(context: str, text: str, cut: int | None, length: int) -> None:
    assert outcome(text, context, length).cut == cut


def test_number_that_begins_in_the_prompt_is_masked() -> None:
    assert outcome("1111 1111 1111, thanks", "Pay with 4111 ").masks == [Mask(0, 14, "[CARD]")]


@pytest.mark.parametrize("card", [OnPersonalData.MASK, OnPersonalData.BLOCK])
def test_number_that_ends_in_the_prompt_counts_no_more(card: OnPersonalData) -> None:
    found = outcome(" 2024 was the year", "My card is 4111 1111 1111 1111", card=card)
    assert (found.cut, found.masks, found.masked) == (None, [], {})


@given(st.lists(st.sampled_from(WORDS), max_size=6), st.lists(st.sampled_from(WORDS), max_size=6), st.integers(1, 9))
def test_no_prompt_hides_what_is_in_the_answer(words: list[str], before: list[str], length: int) -> None:
    alone, continued = outcome("".join(words)), outcome("".join(words), "".join(before), length)
    if alone.cut is not None:
        assert continued.cut is not None and continued.cut <= alone.cut
    if continued.cut is None:
        assert set(alone.masks) <= set(continued.masks)


@given(st.lists(st.sampled_from(WORDS), max_size=8), st.text(st.sampled_from("xyz .,"), max_size=20), st.integers(1, 9))
def test_prompt_with_nothing_open_changes_nothing(words: list[str], before: str, length: int) -> None:
    assert outcome("".join(words), f"{before}. ", length) == outcome("".join(words))

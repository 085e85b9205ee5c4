"""Expressions match where words begin and end, however a text is cut, and open matches alone are held back."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.safety.scans.patterns import MOST_MATCH_LENGTH, Pattern, PatternMatch, PatternScan, PatternSet

EMAIL = r"[a-z0-9._%+-]+@[a-z0-9-]+(\.[a-z0-9-]+)+"
CARD = r"\d([ -]?\d){12,18}"
EXPRESSIONS = (EMAIL, CARD, "ab+(cd)?", "code [0-9]{4}")
PATTERNS = [Pattern(expression, label) for label, expression in enumerate(EXPRESSIONS)]


def matches_of(text: str, patterns: list[Pattern] = PATTERNS) -> list[PatternMatch]:
    scan = PatternScan(PatternSet(patterns))
    return [match for at, c in enumerate(text) for match in scan.step(c, at, at + 1)] + scan.finish()


def found(text: str) -> set[str]:
    return {text[match.begin : match.end] for match in matches_of(text)}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("write to ann.lee@example.org, please", {"ann.lee@example.org"}),
        ("ann@example.org.", {"ann@example.org"}),
        ("ann@example", set()),
        ("4111 1111 1111 1111 and 4111-1111-1111-1111", {"4111 1111 1111 1111", "4111-1111-1111-1111"}),
        ("abbb abbcd xab abx", {"abbb", "abbcd"}),
        ("my code 1234, not code 12345", {"code 1234"}),
        ("1" * 20, set()),
    ],
)
def test_longest_matches_between_words_are_found(text: str, matches: set[str]) -> None:
    assert found(text) == matches


@given(st.lists(st.sampled_from(["ab", "bcd", "abcd", " ", "x", "@", "a.b", "1", "1234 ", "code ", "-"]), max_size=14))
def test_each_match_is_one_of_the_expression_between_words(parts: list[str]) -> None:
    text = "".join(parts)
    matches = matches_of(text)
    for match in matches:
        assert re.fullmatch(EXPRESSIONS[match.label], text[match.begin : match.end])
        assert not text[match.begin - 1 : match.begin].isalnum() or not text[match.begin].isalnum()
        assert not text[match.end : match.end + 1].isalnum() or not text[match.end - 1].isalnum()
    for label, expression in enumerate(EXPRESSIONS):
        ours = [match for match in matches if match.label == label]
        assert all(a.end <= b.begin for a, b in itertools.pairwise(ours))
        if any(re.fullmatch(expression, word) for word in text.split(" ")):
            assert ours


@given(st.lists(st.sampled_from(["a", "b", "cd", " ", "@", ".", "1", "code 12"]), max_size=30))
def test_no_match_begins_in_what_was_not_held_back(parts: list[str]) -> None:
    text, released = "".join(parts), 0
    scan = PatternScan(PatternSet(PATTERNS))
    for at, character in enumerate(text):
        assert all(match.begin >= released for match in scan.step(character, at, at + 1))
        released = max(released, at + 1 if scan.open_from is None else scan.open_from)
    assert all(match.begin >= released for match in scan.finish())


def test_text_that_never_ends_to_match_is_not_held_back_for_ever() -> None:
    scan = PatternScan(PatternSet(PATTERNS))
    for at in range(10 * MOST_MATCH_LENGTH):
        scan.step("-" if at % 2 else "a", at, at + 1)
        assert scan.open_from is None or at - scan.open_from < MOST_MATCH_LENGTH


@pytest.mark.parametrize("num_before", range(MOST_MATCH_LENGTH - 40, MOST_MATCH_LENGTH + 10))
def test_no_long_beginning_hides_a_match(num_before: int) -> None:
    text = "x-" * (num_before // 2) + "-" * (num_before % 2) + "ann@example.org"
    assert any(part.endswith("ann@example.org") for part in found(text))


@pytest.mark.parametrize("expression", ["(", "a*", r"(a)\1", "(?<=a)b", "(a|b)*a(a|b){10}"])
def test_expressions_that_are_not_supported_are_refused(expression: str) -> None:
    with pytest.raises(ValueError, match="the pattern"):
        Pattern(expression, 0)

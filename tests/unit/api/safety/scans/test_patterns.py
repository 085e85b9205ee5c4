"""Expressions match where words begin and end, however a text is cut, and open matches alone are held back."""

import itertools
import re
import time
from typing import Any

import interegular
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.safety.scans.automata import automaton_of
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


@pytest.mark.parametrize(
    "expression", ["(", "a*", r"(a)\1", "(?<=a)b", "(?!a)b", "a{3,2}", "(" * 3000 + "a" + ")" * 3000]
)
def test_expressions_that_are_not_supported_are_refused(expression: str) -> None:
    with pytest.raises(ValueError, match="the pattern"):
        Pattern(expression, 0)


REFUSED_WITHIN_S = 10.0
"""Of CPU time: half a second, and the collections of a process that has run thousands of tests. Without a bound each of
these expressions takes minutes.
"""


@pytest.mark.parametrize(
    "expression",
    [
        *("a{20000}", "(a|b){3000}c", ".*x.{15}", "(a|b)*a(a|b){10}", "(a?){1000}", "(((a{99}){99}){99}){99}"),
        *("(){999999999}", "a{99999999999}", "[\x00-\U0010ffff]", "a" * 1_000_000, "(a|b)*a(a|b){12}(a|b)*"),
    ],
    ids=lambda expression: expression[:20],
)
def test_expressions_that_explode_are_refused_at_once(expression: str) -> None:
    began_at = time.process_time()
    with pytest.raises(ValueError, match="the pattern"):
        Pattern(expression, 0)
    assert time.process_time() - began_at < REFUSED_WITHIN_S


EXPRESSIONS_OF_ALL_KINDS = st.recursive(
    st.sampled_from(["a", "b", "[ab]", "[^a]", ".", "c", r"\d", "[b-d]", "(?i:A)"]),
    lambda inner: (
        st.tuples(inner, inner).map("".join)
        | st.tuples(inner, inner).map(lambda both: f"({both[0]}|{both[1]})")
        | st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{2,}", "{0}"])).map(
            lambda both: f"({both[0]}){both[1]}"
        )
    ),
    max_leaves=6,
)


@given(EXPRESSIONS_OF_ALL_KINDS, st.lists(st.text(st.sampled_from("aAbcd1x"), max_size=7), max_size=8))
def test_automata_match_what_python_matches(expression: str, texts: list[str]) -> None:
    automaton = automaton_of(expression)
    for text in texts:
        state: int | None = 0
        for character in text:
            symbol = automaton.symbols.get(character, automaton.other)
            state = None if state is None else automaton.next[state].get(symbol)
        assert (state in automaton.finals) == (re.fullmatch(expression, text) is not None)


@given(EXPRESSIONS_OF_ALL_KINDS)
def test_automata_have_no_state_too_many(expression: str) -> None:
    automaton = automaton_of(expression)
    reduced: Any = interegular.parse_pattern(expression).to_fsm()
    reduced = reduced.reduce()
    num_live = sum(reduced.islive(state) for state in reduced.states)
    assert len(automaton.next) == max(1, num_live)

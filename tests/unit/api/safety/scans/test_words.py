"""Terms are found as words of a text, however it is cut, and no more is held back than what may become a hit."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.safety.scans.trie import MOST_TERM_LENGTH, Term, Trie
from api.safety.scans.words import TermHit, WordScan

TERMS = ("bomb", "pipe bomb", "kill", "kill them all", "a", "a b", "b-c")
TRIE = Trie([Term(text, label) for label, text in enumerate(TERMS)] + [Term("poison", len(TERMS), is_stem=True)])
TEXTS = st.text(st.sampled_from("abc bomp-kile"), max_size=40) | st.lists(
    st.sampled_from([*TERMS, "poisonous", " ", "x", "-"]), max_size=8
).map("".join)


def hits_of(text: str, trie: Trie = TRIE) -> list[TermHit]:
    scan = WordScan(trie)
    return [hit for at, c in enumerate(text) for hit in scan.step(c, at, at + 1)] + scan.finish()


def found(text: str) -> set[str]:
    return {text[hit.begin : hit.end] for hit in hits_of(text)}


def expected(text: str) -> set[TermHit]:
    """By the definition."""

    def is_edge(at: int) -> bool:
        return at in (0, len(text)) or not (text[at - 1].isalnum() and text[at].isalnum())

    whole = {
        TermHit(label, at, at + len(term))
        for label, term in enumerate(TERMS)
        for at in range(len(text))
        if text.startswith(term, at) and is_edge(at) and is_edge(at + len(term))
    }
    return whole | {
        TermHit(len(TERMS), at, at + 6) for at in range(len(text)) if text.startswith("poison", at) and is_edge(at)
    }


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("a pipe bomb!", {"a", "pipe bomb", "bomb"}),
        ("bombastic", set()),
        ("skill", set()),
        ("they kill them all", {"kill", "kill them all"}),
        ("poisonous", {"poison"}),
        ("antipoison", set()),
    ],
)
def test_terms_are_found_as_words(text: str, terms: set[str]) -> None:
    assert found(text) == terms


@given(TEXTS)
def test_hits_are_those_of_the_definition(text: str) -> None:
    hits = hits_of(text)
    assert set(hits) == expected(text) and len(hits) == len(set(hits))


@given(TEXTS)
def test_what_is_not_held_back_is_in_no_later_hit_and_what_is_may_be_in_one(text: str) -> None:
    scan = WordScan(TRIE)
    open_from: list[int] = []
    for at, character in enumerate(text):
        for hit in scan.step(character, at, at + 1):
            assert all(hit.begin >= since for since in open_from[hit.begin + 1 :])
        open_from.append(at + 1 if scan.open_from is None else scan.open_from)
        if scan.open_from is not None:
            begun = text[scan.open_from : at + 1]
            assert any(term.startswith(begun) for term in (*TERMS, "poison"))
    assert all(a <= b for a, b in pairwise(open_from))
    assert all(hit.begin >= (open_from or [0])[-1] for hit in scan.finish())


@pytest.mark.parametrize("text", ["", "x" * (MOST_TERM_LENGTH + 1)])
def test_terms_without_an_end_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a term has 1 to 128 characters"):
        Trie([Term(text, 0)])

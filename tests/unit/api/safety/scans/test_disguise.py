"""Terms are found in disguise, wherever the text is cut, and words that are none are left alone."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.safety.scans.disguise import DisguiseScan, undisguised
from api.safety.scans.normalise import Normaliser
from api.safety.scans.trie import Term, Trie
from api.safety.scans.words import TermHit

TERMS = ("bomb", "pipe bomb", "kill", "assassin", "hell", "shit")
TRIE = Trie(undisguised(Term(text, label)) for label, text in enumerate(TERMS))


def hits_of(text: str, cuts: tuple[int, ...] = ()) -> list[TermHit]:
    scan, normaliser, hits = DisguiseScan(TRIE), Normaliser(), list[TermHit]()
    bounds = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    parts = [normaliser.feed(text[a:b]) for a, b in itertools.pairwise(bounds)]
    for part in [*parts, normaliser.finish()]:
        for character, at in zip(part.text, part.offsets, strict=True):
            hits += scan.step(character, at, at + 1)
    return hits + scan.finish()


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("a b o m b.", "b o m b"),
        ("b.o.m.b", "b.o.m.b"),
        ("b - o - m - b", "b - o - m - b"),
        ("the b0mb", "b0mb"),
        ("bommmmb!", "bommmmb"),
        ("BOOOOMB", "BOOOOMB"),
        ("p1pe bomb", "p1pe bomb"),
        ("k1ll!", "k1ll"),
        ("k!ll", "k!ll"),
        ("$hit", "$hit"),
        ("a$$a$$in", "a$$a$$in"),
        ("b\u200b 0 m \u200bb", "b\u200b 0 m \u200bb"),
    ],
)
def test_disguised_terms_are_found(text: str, term: str) -> None:
    assert {text[hit.begin : hit.end] for hit in hits_of(text)} >= {term}


@pytest.mark.parametrize(
    "text",
    [
        "a bomb",  # words.py finds it
        "a bit of skill as sin",
        "hello, shell!",
        "8008 1000 000 5417",
        "I kill, he kills",
        "1. b 2. o 3. m 4. c",
        "so good, coool",
    ],
)
def test_words_that_are_no_disguise_are_left_alone(text: str) -> None:
    assert hits_of(text) == []


@given(
    st.lists(st.sampled_from([*TERMS, *"bomb kil1!$ .-0", "b o m b", "k1ll", "\u200b", "  "]), max_size=12).map(
        "".join
    ),
    st.lists(st.integers(0, 80), max_size=4).map(tuple),
)
def test_cuts_change_nothing_and_no_hit_begins_in_what_was_not_held_back(text: str, cuts: tuple[int, ...]) -> None:
    assert hits_of(text, cuts) == hits_of(text)
    scan, normaliser, released = DisguiseScan(TRIE), Normaliser(), 0
    part = normaliser.feed(text)
    for character, at in zip(part.text, part.offsets, strict=True):
        assert all(hit.begin >= released for hit in scan.step(character, at, at + 1))
        released = at + 1 if scan.open_from is None else scan.open_from
    assert all(hit.begin >= released for hit in scan.finish())

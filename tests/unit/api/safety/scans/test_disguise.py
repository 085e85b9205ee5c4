"""Terms are found in disguise, wherever the text is cut, and words that are none are left alone."""

import itertools
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from api.safety.scans.disguise import MOST_FILL, DisguiseScan
from api.safety.scans.normalise import Normaliser
from api.safety.scans.spellings import DisguisedTerms
from api.safety.scans.trie import Term
from api.safety.scans.words import TermHit

TERMS = (
    *("bomb", "pipe bomb", "kill", "assassin", "hell", "shit", "penis"),
    *("go die", "kkk", "end it", "kill lots of them"),
)
DISGUISED = DisguisedTerms([Term(text, label) for label, text in enumerate(TERMS)])


def hits_of(text: str, cuts: tuple[int, ...] = ()) -> list[TermHit]:
    scan, normaliser, hits = DisguiseScan(DISGUISED), Normaliser(), list[TermHit]()
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
        ("a bo**mb**", "bo**mb"),
        ("**b**omb", "b**omb"),
        ("b*o*m*b", "b*o*m*b"),
        ("~~bo~~mb", "bo~~mb"),
        ("bo`m`b", "bo`m`b"),
        ("bo\U0001f525mb", "bo\U0001f525mb"),
        ("bo-mb!", "bo-mb"),
        ("bo\u2011mb", "bo\u2011mb"),
        ("bo_mb", "bo_mb"),
        ("ki.ll", "ki.ll"),
        ("pe-n-is", "pe-n-is"),
        ("a pi.pe bo.mb", "pi.pe bo.mb"),
        ("pi pe bomb", "pi pe bomb"),
        ("pip ebo mb", "pip ebo mb"),
        ("ass-assin", "ass-assin"),
        ("pipe-bomb", "pipe-bomb"),
        ("pipe_bomb", "pipe_bomb"),
        ("a pipe **bomb**", "pipe **bomb"),
        ("pipe  bomb", "pipe  bomb"),
        ("pipe\r\nbomb", "pipe\r\nbomb"),
        ("PipeBomb", "PipeBomb"),
        ("#pipebomb", "pipebomb"),
        ("kil lots of them kill l-ots of them", "kill l-ots of them"),
        ("g0die", "g0die"),
        ("k k k", "k k k"),
        ("a s s a s s i n", "a s s a s s i n"),
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
        "5 hit songs of 2005",
        "he'll go, she\u2019ll, s-hit",
        "the pen is mightier, pen-is, pen.is_down, pen_is",
        "godie, god ie, god-ie, ki ll, bom b",
        "Look at the pipe. Bomb squads came, and the pipe, bomb, pipe - bomb",
        "a pipe (bomb), a pipe/bomb, pipe: bomb",
        "end. It, as.s, as s, s.hit()",
        "b bomb, bomb b, bombb, hel, k-k",
        "k <= i, i <= l",
    ],
)
def test_words_that_are_no_disguise_are_left_alone(text: str) -> None:
    assert hits_of(text) == []


@given(st.lists(st.sampled_from(["*", "**", "~~", "`", "\u200b", "", "\U0001f525"]), min_size=6, max_size=6))
def test_no_markup_hides_a_term(marks: list[str]) -> None:
    text = "".join(letter + mark for letter, mark in zip("pipebom", [*marks, ""], strict=True)) + "b"
    assert any(hit.label == TERMS.index("pipe bomb") for hit in hits_of(text))


@given(st.sets(st.integers(1, 13)), st.sampled_from([" ", "-", ".", "_", "*"]))
@example({3, 8, 10}, " ")
@example({4, 5, 8, 10}, " ")
def test_no_cuts_hide_a_long_term(cuts: set[int], mark: str) -> None:
    letters = "killlotsofthem"
    text = "".join(mark + letter if at in cuts else letter for at, letter in enumerate(letters))
    assert any(hit.label == TERMS.index("kill lots of them") for hit in hits_of(text)) or cuts == {4, 8, 10}


@given(
    st.lists(
        st.sampled_from([*TERMS, *"bomb kil1!$ .-0_", "b o m b", "k1ll", "\u200b", "  ", "**", "bo", "pi", "p", "e"]),
        max_size=12,
    ).map("".join),
    st.lists(st.integers(0, 80), max_size=4).map(tuple),
)
def test_cuts_change_nothing_and_no_hit_begins_in_what_was_not_held_back(text: str, cuts: tuple[int, ...]) -> None:
    assert hits_of(text, cuts) == hits_of(text)
    scan, normaliser, released = DisguiseScan(DISGUISED), Normaliser(), 0
    part = normaliser.feed(text)
    for character, at in zip(part.text, part.offsets, strict=True):
        assert all(hit.begin >= released for hit in scan.step(character, at, at + 1))
        released = at + 1 if scan.open_from is None else scan.open_from
    assert all(hit.begin >= released for hit in scan.finish())


@pytest.mark.parametrize("fill", [" ", ".", "*", "o", "o ", ", "])
def test_wide_gaps_are_not_held_back_for_ever(fill: str) -> None:
    scan = DisguiseScan(DISGUISED)
    for at, character in enumerate("pipe bo" + fill * 200):
        scan.step(character, at, at + 1)
        assert scan.open_from is None or at - scan.open_from < 3 * MOST_FILL


@pytest.mark.parametrize(
    "text",
    [
        *("b", "b ", "b.", "bo*", "pi pe bo ", "k-", "pipe bom "),
        *("k k i l l ", "$", "$ ", "1", "kkk", "bomb ", "bo-mb "),
    ],
)
def test_time_grows_with_the_length_alone(text: str) -> None:
    def seconds(length: int) -> float:
        scan, began_at = DisguiseScan(DISGUISED), time.process_time()
        for at, character in enumerate(text * (length // len(text))):
            scan.step(character, at, at + 1)
        return time.process_time() - began_at

    few, many = (min(seconds(length) for _ in range(3)) for length in (2_000, 20_000))
    assert many < 40 * max(few, 1e-3)

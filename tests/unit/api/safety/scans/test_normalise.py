"""Texts that look alike have one form, each character of which knows its place, however the text is cut into parts."""

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.safety.scans.normalise import Canonical, Normaliser, canonical

TEXTS = st.text(st.one_of(st.sampled_from('abcuUd8\\0069f{[" \n\u200b\u0301а'), st.characters()), max_size=60)


def in_parts(text: str, cuts: list[int]) -> Canonical:
    normaliser = Normaliser()
    bounds = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    parts = [normaliser.feed(text[a:b]) for a, b in itertools.pairwise(bounds)]
    parts.append(normaliser.finish())
    assert normaliser.open_from == len(text)
    return Canonical(
        "".join(part.text for part in parts),
        [offset for part in parts for offset in part.offsets],
        [end for part in parts for end in part.ends],
    )


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("BOMB", "bomb"),
        ("b\u200bo\u00admb", "bomb"),
        ("bömb", "bomb"),
        ("bo\u0308mb", "bomb"),
        ("ｂｏｍｂ", "bomb"),
        ("𝐛𝕠𝖒𝓫", "bomb"),
        ("bоmb with a Cyrillic о", "bomb with a cyrillic o"),
        ("ⓑⓞⓜⓑ", "bomb"),
        ("b\u202eo\u202cmb", "bomb"),
        ("".join(chr(0xE0000 + ord(c)) for c in "Bomb"), "bomb"),
        (r"\u0062omb", "bomb"),
        (r"C:\users and \n", r"c:\users and \n"),
        (r'{"a": "x\nbomb \"b\""}', '{"a": "x bomb "b""}'),
        (r'[ "\tb\u006fmb"]', '[ " bomb"]'),
        (r'{"a": "\ud835\udc1b\ud835\udc28mb"}', '{"a": "bomb"}'),
        (r"\ud835\udc1bomb", "bomb"),
        (r'"\nbomb"', r'"\nbomb"'),
        ("gl\u3164ue ʙᴏᴍʙ 🅱omb", "glue bomb bomb"),
        ("a\u00a0\tb", "a  b"),
        ("I\u2019m", "i'm"),
        ("Straße", "strasse"),
        ("ﬁne", "fine"),
    ],
)
def test_texts_that_look_alike_have_one_form(text: str, form: str) -> None:
    assert canonical(text) == form


@given(TEXTS, st.lists(st.integers(0, 60), max_size=5))
def test_parts_of_a_text_have_the_form_of_the_whole(text: str, cuts: list[int]) -> None:
    assert in_parts(text, cuts) == in_parts(text, [])


@given(TEXTS)
def test_each_character_knows_where_it_comes_from(text: str) -> None:
    whole = in_parts(text, [])
    assert len(whole.text) == len(whole.offsets) == len(whole.ends)
    assert list(whole.offsets) == sorted(whole.offsets)
    assert all(0 <= offset < end <= len(text) for offset, end in zip(whole.offsets, whole.ends, strict=True))
    spans = itertools.pairwise(zip(whole.offsets, whole.ends, strict=True))
    assert all(span == following or span[1] <= following[0] for span, following in spans)


@pytest.mark.parametrize("escape", [r"\u0041", r"\ud835\udc1b", r"\n"])
def test_escape_ends_where_it_does(escape: str) -> None:
    text = f'{{"x{escape}y'
    whole = in_parts(text, [])
    assert text[whole.offsets[3] : whole.ends[3]] == escape


@given(st.text())
def test_form_is_its_own_form_without_escapes(text: str) -> None:
    form = canonical(text.replace("\\", ""))
    assert canonical(form) == form


@pytest.mark.parametrize("character", ["a", "\\", "\u0301", "ﷺ", "\U000e0062"])
def test_time_grows_with_the_length_alone(character: str) -> None:
    def seconds(length: int) -> float:
        text, began_at = character * length, time.process_time()
        canonical(text)
        return time.process_time() - began_at

    few, many = (min(seconds(length) for _ in range(3)) for length in (20_000, 200_000))
    assert many < 40 * max(few, 1e-3)

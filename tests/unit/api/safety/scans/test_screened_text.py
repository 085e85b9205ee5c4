"""Not one character of what is cut or masked is released, the rest is, and as early as it can be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.safety.scans.disguise import DisguiseScan
from api.safety.scans.patterns import Pattern, PatternScan, PatternSet
from api.safety.scans.screened_text import Cut, Found, Mask, ScreenedText
from api.safety.scans.spellings import DisguisedTerms
from api.safety.scans.trie import Term, Trie
from api.safety.scans.words import WordScan
from tests.unit.api.safety.scans.shown_text import shown_parts

TERMS = [Term("bomb", 0), Term("pipe bomb", 1), Term("kill them all", 2), Term("them", 3)]
PATTERNS = [Pattern(r"[a-z0-9.]+@[a-z0-9]+(\.[a-z]+)+", 0), Pattern(r"\d([ -]?\d){12,18}", 1)]
MASKS = ["[EMAIL]", "[CARD]"]
TRIE, DISGUISED = Trie(TERMS), DisguisedTerms(TERMS)


def judge(number: int, found: Found, text: str) -> list[Cut | Mask]:
    return [Mask(found.begin, found.end, MASKS[found.label]) if number == 2 else Cut(found.begin)]


def screen() -> ScreenedText:
    return ScreenedText([WordScan(TRIE), DisguiseScan(DISGUISED), PatternScan(PatternSet(PATTERNS))], judge)


def released(parts: list[str]) -> list[str]:
    return shown_parts(screen(), parts)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("All is well.", "All is well."),
        ("First a pipe bomb, then", "First a "),
        ("First a pipe dream", "First a pipe dream"),
        ("First a B\u200bO\u200bM\u200bB!", "First a "),
        ("Then b 0 m b", "Then "),
        ("ann@example.org and 4111 1111 1111 1111.", "[EMAIL] and [CARD]."),
        ("Ann Lee <ANN@EXAMPLE.ORG> has a bomb", "Ann Lee <[EMAIL]> has a "),
        ("\\u0062omb", ""),
    ],
)
def test_what_is_released(text: str, shown: str) -> None:
    assert "".join(released([text])) == shown
    assert "".join(released(list(text))) == shown


@given(
    st.lists(
        st.sampled_from(
            ["pipe", " ", "bomb", "kill ", "them ", "all", "a@b.org", "4111 1111 ", "1111 1111", "x", "\u200b"]
        )
        | st.characters(),
        max_size=12,
    ),
    st.integers(1, 7),
)
def test_parts_change_nothing(words: list[str], length: int) -> None:
    text = "".join(words)
    whole = "".join(released([text]))
    assert "".join(released([text[at : at + length] for at in range(0, len(text), length)])) == whole
    if not any(mask in whole for mask in MASKS):
        assert text.startswith(whole)


@given(st.text(st.sampled_from("abcdefgh .,"), max_size=60))
def test_words_that_begin_like_no_term_are_released_at_once(text: str) -> None:
    screened = ScreenedText([WordScan(Trie([Term("zebra", 0)]))], judge)
    assert shown_parts(screened, text) == [*text, ""]

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


def screen(context: str = "") -> ScreenedText:
    return ScreenedText([WordScan(TRIE), DisguiseScan(DISGUISED), PatternScan(PatternSet(PATTERNS))], judge, context)


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


def outcome(text: str, context: str = "") -> tuple[int | None, list[Mask]]:
    """The characters of the text that are decided at its end if it is cut, and its masks."""
    screened = screen(context)
    screened.feed(text)
    screened.finish()
    begins_at = len(context)
    cut = None if screened.cut is None else screened.cut.begin - begins_at
    return cut, [mask._replace(begin=mask.begin - begins_at, end=mask.end - begins_at) for mask in screened.masks]


@pytest.mark.parametrize(
    ("context", "text", "cut"),
    [
        ("How to make a pipe", " bomb at home", 0),
        ("How to make a pi", "pe bomb at home", 0),
        ("Make a pipe ", "dream", None),
        ("A bomb, ", "they say", None),
        ("Paris", "bomb", 0),
        ("x", "b 0 m b", 0),
        ("\\u006", "2omb", 0),
    ],
)
def test_a_term_may_begin_in_what_a_text_continues(context: str, text: str, cut: int | None) -> None:
    assert outcome(text, context)[0] == cut


def test_a_number_may_begin_in_what_a_text_continues() -> None:
    assert outcome("1111 1111 1111, thanks", "Pay with 4111 ") == (None, [Mask(0, 14, "[CARD]")])


@given(
    st.lists(st.sampled_from(["pipe", " ", "bomb", "kill ", "them", "all", "x", "b.0.m.b"]), max_size=6),
    st.lists(st.sampled_from(["pipe", " ", "bomb", "kill ", "them", "all", "x", "b.0.m.b", "4", "@"]), max_size=6),
)
def test_no_context_hides_what_is_in_the_text(words: list[str], before: list[str]) -> None:
    alone, _ = outcome("".join(words))
    continued, _ = outcome("".join(words), "".join(before))
    assert alone is None or (continued is not None and continued <= alone)

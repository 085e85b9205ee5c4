"""A quoted text has no special token and no line of its own, and says the same."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.safety.guards.dialects.quoting import QUOTE, quoted

MARKERS = (
    "<|eot_id|>", "<|start_header_id|>", "<|im_end|>", "<|endoftext|>", "<end_of_turn>", "<start_of_turn>", "<bos>",
    "</s>", "<think>", "<END CONVERSATION>", "[INST]", "[@BOS@]", "<unused7>", "\uff1c|eot|\uff1e", "<<s>>", "[[x]]",
)  # fmt: skip
PARTS = st.sampled_from(MARKERS) | st.sampled_from(["\n", "\r", "\r\n", "\u2028", "\x85", "safe", "Agent:"]) | st.text()
TEXTS = st.lists(PARTS, max_size=8).map("".join)


@given(TEXTS)
def test_no_marker_is_left(text: str) -> None:
    shown = quoted(text)
    assert [marker for marker in MARKERS if marker in shown] == []
    assert re.search(r"[<\[][^\s]", shown) is None


@given(TEXTS)
def test_no_line_begins_with_the_words_of_the_text(text: str) -> None:
    first, *others = quoted(text).splitlines() or [""]
    assert [line for line in others if not line.startswith(QUOTE)] == []
    assert not others or first.startswith(QUOTE)


@given(TEXTS)
def test_nothing_is_lost(text: str) -> None:
    def plain(of: str) -> str:
        return re.sub(r"[\s>]", "", of)

    assert plain(quoted(text)) == plain(text.encode("utf-8", "replace").decode())


@pytest.mark.parametrize("text", ["how to bake a cake", "a > b", "1 < 2", "", "¿qué?", "你好"])
def test_plain_text_is_not_changed(text: str) -> None:
    assert quoted(text) == text


def test_lone_surrogate_becomes_a_question_mark() -> None:
    assert quoted("a\ud800b") == "a?b"

"""What the linear classifier sees of a word."""

from hypothesis import given
from hypothesis import strategies as st

from api.safety.classifiers.features import (
    CAUTIOUS_UP_TO,
    MOST_LETTERS,
    NUM_HASHED_ROWS,
    WINDOW_WORDS,
    group_rows,
    group_share,
    length_caution,
    pair_row,
)


@given(st.text(max_size=200))
def test_any_word_has_rows_that_there_are(word: str) -> None:
    rows = [*group_rows(word), pair_row("", word), pair_row(word, word)]
    assert all(0 <= row < NUM_HASHED_ROWS for row in rows)


def test_words_that_share_letters_share_rows() -> None:
    assert len({*group_rows("strangle")} & {*group_rows("strangling")}) >= 6


def test_beginning_and_end_of_a_word_count() -> None:
    assert {*group_rows("art")} - {*group_rows("cartoon")}


def test_order_of_two_words_counts() -> None:
    assert pair_row("kill", "process") != pair_row("process", "kill")


def test_endless_word_costs_no_more_than_a_long_one() -> None:
    assert len(group_rows("a" * 1_000_000)) == len(group_rows("a" * MOST_LETTERS))


def test_word_without_groups_has_a_share_all_the_same() -> None:
    assert group_share(0) == 1


def test_caution_begins_after_the_first_window_and_ends() -> None:
    assert length_caution(1) == length_caution(WINDOW_WORDS) == 0
    assert 0 < length_caution(WINDOW_WORDS + 1) < length_caution(CAUTIOUS_UP_TO) == length_caution(10**9)

from hypothesis import given
from hypothesis import strategies as st

from api.state.postgres.stores.search_words import (
    BEFORE_HIT,
    EXCERPT,
    HIT_BEGINS,
    HIT_ENDS,
    MAX_SEARCHED,
    excerpt,
    hashed_query,
    hashed_vector,
    hashed_word,
    lexemes_of,
    text_of,
)

KEY, OTHER = b"k" * 32, b"o" * 32


def quoted(lexeme: str) -> str:
    """As PostgreSQL writes it."""
    return "'" + lexeme.replace("\\", "\\\\").replace("'", "''") + "'"


def the_hash(lexeme: str, key: bytes = KEY) -> str:
    return hashed_vector(quoted(lexeme), key)


@given(st.lists(st.text(min_size=1), max_size=5))
def test_lexemes_come_out_as_they_went_in(lexemes: list[str]) -> None:
    assert lexemes_of(" ".join(f"{quoted(lexeme)}:1,2" for lexeme in lexemes)) == lexemes


@given(st.text(min_size=1), st.text(min_size=1))
def test_words_have_the_same_hash_if_they_are_the_same(one: str, other: str) -> None:
    assert (the_hash(one) == the_hash(other)) == (one == other)
    assert the_hash(one) != the_hash(one, OTHER)


def test_vector_keeps_its_positions() -> None:
    assert hashed_vector("'it''s':1,5 'x'", KEY) == f"{the_hash(chr(39).join(['it', 's']))}:1,5 {the_hash('x')}"


def test_query_keeps_its_shape_and_takes_the_hash_of_any_key() -> None:
    asked = hashed_query("'fat' <-> 'rat' & !'dog'", [KEY, OTHER])
    fat, rat, dog = (f"({the_hash(word)} | {the_hash(word, OTHER)})" for word in ("fat", "rat", "dog"))
    assert asked == f"{fat} <-> {rat} & !{dog}"
    assert hashed_word("fat", [KEY, OTHER]) == fat


def test_only_messages_of_users_and_assistants_have_text() -> None:
    said = {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "a"}, {"type": "input_image"}],
    }
    refused = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}
    assert [text_of(item) for item in (said, refused, said | {"role": "system"}, {"type": "reasoning"})] == [
        "a",
        "",
        "",
        "",
    ]


def test_text_is_cut_and_made_storable() -> None:
    item = {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "a\0\ud800" + "b" * MAX_SEARCHED}],
    }
    assert text_of(item) == "a ?" + "b" * (MAX_SEARCHED - 3)


def test_short_text_is_its_own_excerpt() -> None:
    assert excerpt(f"Then the\n {HIT_BEGINS}canary{HIT_ENDS} sang.") == "Then the canary sang."


def test_text_without_a_hit_is_shown_from_its_beginning() -> None:
    assert excerpt("word " * 100).startswith("word word")


@given(st.text(), st.text(min_size=1, max_size=20), st.text())
def test_excerpt_is_short(before: str, hit: str, after: str) -> None:
    clean = [part.replace(HIT_BEGINS, "").replace(HIT_ENDS, "") for part in (before, hit, after)]
    shown = excerpt(f"{clean[0]}{HIT_BEGINS}{clean[1]}{HIT_ENDS}{clean[2]}")
    assert len(shown) <= EXCERPT + 2


@given(st.integers(0, 200), st.integers(0, 200))
def test_excerpt_of_long_text_is_cut_between_words(num_before: int, num_after: int) -> None:
    shown = excerpt("word " * num_before + f"{HIT_BEGINS}canary{HIT_ENDS}" + " word" * num_after)
    assert "canary" in shown and set(shown.replace("…", "").split()) <= {"word", "canary"}
    assert shown.startswith("…") == (5 * num_before > BEFORE_HIT)

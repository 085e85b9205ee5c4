from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from api.responses.title_text import MAX_TITLE, first_messages, title_body, title_of


@pytest.mark.parametrize(
    ("answer", "title"),
    [
        ("A walk in Rome", "A walk in Rome"),
        ('"A walk in Rome."', "A walk in Rome"),
        ("Title: **A walk in Rome**", "A walk in Rome"),
        ("\n\n# A walk\tin  Rome\nIt begins at the station.", "A walk in Rome"),
        ("<think>They want a walk.\nIn Rome.</think>\nA walk in Rome", "A walk in Rome"),
        ("„Ein Gang durch Rom“", "Ein Gang durch Rom"),
        ("ローマの散歩", "ローマの散歩"),
        ("What now?", "What now?"),
    ],
)
def test_title_is_what_the_model_says_without_its_wrapping(answer: str, title: str) -> None:
    assert title_of(answer, "How do I get to the forum?") == title


@pytest.mark.parametrize("answer", ["", "\n", "...", '""', "<think>They want", "**"])
def test_without_a_usable_answer_the_question_is_the_title(answer: str) -> None:
    assert title_of(answer, "How do I get\nto the forum?") == "How do I get to the forum?"


def test_without_words_there_is_no_title() -> None:
    assert title_of("", "?!") == ""


def test_long_title_is_cut_between_words() -> None:
    title = title_of("", "word " * 100)
    assert len(title) <= MAX_TITLE and title.endswith("word…")


@given(st.text(), st.text())
@example("", "0 .")
def test_any_title_is_one_short_line(answer: str, question: str) -> None:
    title = title_of(answer, question)
    assert len(title) <= MAX_TITLE and title.isprintable() and title == title.strip()


def test_model_is_asked_briefly_and_may_take_its_time() -> None:
    body = title_body("m", "q" * 10_000, "a" * 10_000)
    (message,) = body["messages"]
    assert len(message["content"]) < 1_100 and body["max_completion_tokens"] <= 32 and body["service_tier"] == "flex"


def test_first_question_and_first_answer_are_what_counts() -> None:
    def a_message(role: str, *texts: str) -> dict[str, Any]:
        content = [{"text": text} for text in texts]
        return {"type": "message", "id": f"{role} {texts[0]}", "role": role, "content": content}

    items: list[dict[str, Any]] = [
        a_message("developer", "Be brief"),
        a_message("user", "How", "so?"),
        {"type": "reasoning"},
        a_message("user", "And?"),
        a_message("assistant", "So."),
    ]
    assert first_messages(items) == {"user": ("user How", "How so?"), "assistant": ("assistant So.", "So.")}
    assert first_messages(items[:1]) == {}
